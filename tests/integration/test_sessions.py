"""Sessions at the native backend: what a sender's messages get, and what nobody else can have of them."""

# Shapes: E events, Q queries (8 for each alternative), F features, H horizon (8 packets).

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from mutants import ALL
from test_native_backend import Native, empty, native, served_folder, windows  # noqa: F401 - fixtures
from waiting import wait_until

from swiftqueue.common.atomic import write_file
from swiftqueue.serving.engine import Engine
from swiftqueue.serving.triton.repository import MODEL

pytestmark = pytest.mark.slow
REACH = 128  # events that the default network looks back at
NEW = 16  # events since the question before
EXACT = 1e-5
SESSIONS = 100_000 if ALL else 10_000


@dataclass
class Talk:
    """A sender's rows, and its session at a server."""

    address: str
    x_EF: np.ndarray
    x_QF: np.ndarray
    number: int = field(default_factory=itertools.count(1 << 40).__next__)
    y_BH: np.ndarray | None = None
    version: int = 0  # version of the model that answered last

    def say(
        self, first: int, *questions: tuple[int, int], rest: int = 0, start: bool = False, end: bool = False
    ) -> int:
        """Send events from `first` on and questions (events before each, queries); return `resend`."""
        events = sum(events for events, _ in questions) + rest
        queries = sum(queries for _, queries in questions)
        header = [first, *itertools.chain.from_iterable(questions)]
        tensors = [tensor("session", np.array([header], np.int64))]
        if events:
            tensors.append(tensor("events", self.x_EF[None, first : first + events]))
        if queries:
            tensors.append(tensor("queries", np.resize(self.x_QF, (1, queries, self.x_QF.shape[1]))))
        with grpc.InferenceServerClient(self.address) as client:
            answer = client.infer(
                MODEL, tensors, sequence_id=self.number, sequence_start=start, sequence_end=end
            )
        self.y_BH = answer.as_numpy("latency_us")
        self.version = int(answer.get_response().model_version)
        return int(answer.as_numpy("resend")[0, 0])

    def expected(self, engine: Engine, event: int, queries: int = 16) -> np.ndarray:
        """What the network without a state makes of the same events and queries."""
        x_WF = np.zeros((REACH, self.x_EF.shape[1]), np.float32)
        seen_EF = self.x_EF[max(event - REACH, 0) : event]
        x_WF[REACH - len(seen_EF) :] = seen_EF
        x_QF = np.resize(self.x_QF, (queries, self.x_QF.shape[1]))
        return engine.forward(np.stack([np.vstack([x_WF, x_HF]) for x_HF in np.split(x_QF, queries // 8)]))


def tensor(name: str, values: np.ndarray) -> grpc.InferInput:
    kind = "INT64" if values.dtype == np.int64 else "FP32"
    values = np.ascontiguousarray(values)
    return grpc.InferInput(name, list(values.shape), kind).set_data_from_numpy(values)


@pytest.fixture
def folder(make_artifact: Callable[..., Path]) -> Path:
    return make_artifact(1)


@pytest.fixture
def talk(native: Native, folder: Path) -> Talk:  # noqa: F811
    """A sender with 512 events; the model is served."""
    native.push(folder, 1)
    return sender(native, folder, 1)


def counted(native: Native, value: float, name: str, **labels: str) -> None:  # noqa: F811
    """Wait until a metric has this value, which it has just after the answer is sent."""
    wait_until(lambda: native.metric(name, **labels) == [value], f"{name} is not {value}")


def sender(native: Native, folder: Path, seed: int) -> Talk:  # noqa: F811
    x_BWF = windows(folder, 6, seed)[1:]
    return Talk(native.triton.address, x_BWF[:, :REACH].reshape(-1, x_BWF.shape[2])[:512], x_BWF[0, REACH:])


def test_a_session_answers_what_a_window_does(native: Native, talk: Talk, folder: Path) -> None:  # noqa: F811
    engine = Engine(folder)
    assert talk.say(0, (3, 16), start=True) == -1
    assert talk.y_BH is not None
    np.testing.assert_allclose(talk.y_BH, talk.expected(engine, 3), rtol=EXACT)
    event = 3
    for queries in (16, 8, 16, 16, 8, 16, 16, 16, 16, 16, 16, 16, 16, 16):
        assert talk.say(event, (NEW, queries)) == -1
        event += NEW
        np.testing.assert_allclose(talk.y_BH, talk.expected(engine, event, queries), rtol=EXACT)
    # Several questions in one message, one without new events; and events after the last one.
    assert talk.say(event, (5, 16), (0, 8), (40, 16), rest=7) == -1
    wanted = [talk.expected(engine, event + 5), talk.expected(engine, event + 5, 8)]
    np.testing.assert_allclose(talk.y_BH, np.vstack([*wanted, talk.expected(engine, event + 45)]), rtol=EXACT)
    assert talk.say(event + 52, (0, 16)) == -1
    np.testing.assert_allclose(talk.y_BH, talk.expected(engine, event + 52), rtol=EXACT)


def test_a_question_with_sixteen_new_events_is_at_most_eight_kilobytes(talk: Talk) -> None:
    request = grpc.service_pb2.ModelInferRequest(model_name=MODEL, id="18446744073709551615")
    header = np.array([[1 << 62, NEW, 16]], np.int64)
    for name, kind, values in (
        ("session", "INT64", header),
        ("queries", "FP32", np.resize(talk.x_QF, (1, 16, talk.x_QF.shape[1]))),
        ("events", "FP32", talk.x_EF[None, :NEW]),
    ):
        request.inputs.add(name=name, datatype=kind, shape=values.shape)
        request.raw_input_contents.append(values.tobytes())
    request.parameters["sequence_id"].int64_param = -1
    request.parameters["sequence_start"].bool_param = request.parameters["sequence_end"].bool_param = True
    assert 6_600 < request.ByteSize() <= 8_192


@pytest.mark.parametrize("event", [64, 200])
def test_a_band_that_is_sent_again_restores_a_session_bit_by_bit(talk: Talk, event: int) -> None:
    """Where events are missing, or come twice, the session says from which on it wants them again."""
    assert talk.say(0, rest=event, start=True) == -1
    assert talk.say(event, (0, 16)) == -1
    before, wanted = talk.y_BH, max(event + NEW + 1 - REACH, 0)
    assert talk.say(event + 1, (NEW, 16)) == wanted, "one is missing"
    assert talk.y_BH is None
    assert talk.say(event, (0, 16)) == -1, "and nothing has changed"
    np.testing.assert_array_equal(talk.y_BH, before)
    assert talk.say(event - 8, (NEW, 16)) == -1, "eight came twice"
    assert talk.say(event + 8, (0, 16)) == -1
    after = talk.y_BH
    assert talk.say(event, (0, 16)) == max(event - REACH, 0), "a question of the past"
    assert talk.say(event + 99, (0, 16)) == max(event + 99 - REACH, 0), "a question of the future"
    wanted = max(event + 8 - REACH, 0)
    if wanted:  # too few of them would be another, shorter log
        assert talk.say(wanted + 1, (event + 8 - wanted - 1, 16), start=True) == wanted
    assert talk.say(wanted, (event + 8 - wanted, 16), start=True) == -1
    np.testing.assert_array_equal(talk.y_BH, after)


def test_nobody_gets_anything_of_another_session(native: Native, talk: Talk, folder: Path) -> None:  # noqa: F811
    stranger = sender(native, folder, 7)
    engine = Engine(folder)
    assert talk.say(0, (200, 16), start=True) == -1
    assert stranger.say(200, (0, 16)) == 200 - REACH, "a number that nobody opened"
    assert stranger.y_BH is None
    assert stranger.say(0, (200, 16), start=True) == -1
    np.testing.assert_allclose(stranger.y_BH, stranger.expected(engine, 200), rtol=EXACT)
    assert talk.say(200, (0, 16)) == -1
    np.testing.assert_allclose(talk.y_BH, talk.expected(engine, 200), rtol=EXACT)
    talk.number = 0
    with pytest.raises(grpc.InferenceServerException, match="a session has a number"):
        talk.say(200, (0, 16))


def test_the_end_ends_it(native: Native, talk: Talk) -> None:  # noqa: F811
    opened = native.metric("swiftqueue_sessions_opened_total")[0]
    assert talk.say(0, (50, 16), start=True) == -1
    counted(native, 1, "swiftqueue_sessions")
    assert talk.say(50, (4, 16), end=True) == -1, "the last question is answered"
    assert talk.y_BH is not None
    counted(native, 0, "swiftqueue_sessions")
    resends = native.metric("swiftqueue_resends_total")[0]
    assert talk.say(54, (0, 16)) == 0
    counted(native, resends + 1, "swiftqueue_resends_total")
    counted(native, opened + 1, "swiftqueue_sessions_opened_total")
    assert talk.say(54, end=True) == 0, "a session that is not known ends, too"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda said: said["events"].__setitem__((0, 3, 5), np.nan), r"event 3: \w+ is NaN or outside"),
        (lambda said: said["queries"].__setitem__((0, 9, 0), np.inf), "query 9: size_bytes is NaN or"),
        (lambda said: said.update(session=np.array([[0, 5]])), "session is not the number of the first"),
        (lambda said: said.update(session=np.array([[-1, 16, 16]])), "session is not the number"),
        (lambda said: said.update(session=np.array([[0, 17, 16]])), "session is not the number"),
        (lambda said: said.update(session=np.array([[0, 16, 24]])), "session is not the number"),
        (lambda said: said.update(session=np.array([[0, 16, 8]])), "session is not the number"),
        (lambda said: said.update(session=np.array([[0, 1 << 62, 16]])), "session is not the number"),
        (lambda said: said.update(session=np.array([[0] * 131])), r"session has shape \[1, 131\]"),
        (lambda said: said.update(session=np.array([[0], [0]])), r"session has shape \[2, 1\]|batch"),
        (lambda said: said.pop("session"), "session is not the number"),
        (lambda said: said.update(events=said["events"][:, :, 1:]), "shape"),
        (lambda said: said.update(events=np.zeros((1, 8193, 52), np.float32)), "at most 8192"),
    ],
)  # fmt: skip
def test_an_impossible_message_is_refused_in_one_line_and_changes_nothing(
    talk: Talk, change: Callable[[dict[str, np.ndarray]], Any], line: str
) -> None:
    said = {
        "session": np.array([[0, NEW, 16]]),
        "events": talk.x_EF[None, :NEW].copy(),
        "queries": np.resize(talk.x_QF, (1, 16, talk.x_QF.shape[1])),
    }
    change(said)
    tensors = [tensor(name, values) for name, values in said.items()]
    with grpc.InferenceServerClient(talk.address) as client:
        with pytest.raises(grpc.InferenceServerException, match=line):
            client.infer(MODEL, tensors, sequence_id=talk.number, sequence_start=True)
        with pytest.raises(grpc.InferenceServerException, match="unsigned int"):
            client.infer(MODEL, tensors[:1], sequence_id="a name")
    assert talk.say(0, (NEW, 16)) == 0, "no session was opened"
    assert talk.say(0, (NEW, 16), start=True) == -1


def say_together(
    address: str, *parts: tuple[Talk, int, int, int, bool]
) -> tuple[list[int], np.ndarray | None]:
    """Send a message of several sessions; return `resend` of each and the answers.

    Each part is a sender, its first event, its events before its one question, events after it, and whether
    the session begins.
    """
    header, x_EF, x_QF = [], [], []
    for talk, first, before, rest, start in parts:
        header += [talk.number, int(start), first, before + rest, 1, before, 16]
        x_EF.append(talk.x_EF[first : first + before + rest])
        x_QF.append(np.resize(talk.x_QF, (16, talk.x_QF.shape[1])))
    tensors = [tensor("session", np.array([header])), tensor("queries", np.vstack(x_QF)[None])]
    if sum(map(len, x_EF)):
        tensors.append(tensor("events", np.vstack(x_EF)[None]))
    with grpc.InferenceServerClient(address) as client:
        answer = client.infer(MODEL, tensors)
    return answer.as_numpy("resend")[:, 0].tolist(), answer.as_numpy("latency_us")


def test_a_message_of_several_sessions_answers_each_with_its_own(
    native: Native,  # noqa: F811
    talk: Talk,
    folder: Path,
) -> None:
    """One whose session is not known gets none, and takes nothing of the others'."""
    engine, (one, two, lost) = Engine(folder), (sender(native, folder, seed) for seed in (1, 2, 3))
    resend, y_BH = say_together(talk.address, (one, 0, 40, 3, True), (two, 0, 200, 0, True))
    assert resend == [-1, -1]
    expected = [one.expected(engine, 40), two.expected(engine, 200)]
    np.testing.assert_allclose(y_BH, np.vstack(expected), rtol=EXACT)
    assert not np.allclose(*expected, rtol=1e-3), "the senders are told apart"
    resend, y_BH = say_together(
        talk.address, (two, 200, NEW, 0, False), (lost, 300, NEW, 0, False), (one, 43, 0, 0, False)
    )
    assert resend == [-1, 300 + NEW - REACH, -1]
    expected = [two.expected(engine, 200 + NEW), one.expected(engine, 43)]
    np.testing.assert_allclose(y_BH, np.vstack(expected), rtol=EXACT)
    assert one.say(43, (NEW, 16)) == -1, "a message of its own goes on with the same session"
    np.testing.assert_allclose(one.y_BH, one.expected(engine, 43 + NEW), rtol=EXACT)
    resend, y_BH = say_together(talk.address, (two, 216, NEW, 0, False), (two, 216 + NEW, NEW, 0, False))
    assert resend == [-1, -1], "a session may have two parts"
    np.testing.assert_allclose(y_BH[2:], two.expected(engine, 216 + 2 * NEW), rtol=EXACT)


@pytest.mark.parametrize(
    "header",
    [
        [0, 1, 0, NEW, 1, NEW, 16],  # no number
        [7, 4, 0, NEW, 1, NEW, 16],  # an unknown flag
        [7, -1, 0, NEW, 1, NEW, 16],
        [7, 1, -1, NEW, 1, NEW, 16],
        [7, 1, (1 << 62) + 1, NEW, 1, NEW, 16],
        [7, 1, 0, NEW + 1, 1, NEW, 16],  # more events than there are
        [7, 1, 0, -1, 1, NEW, 16],
        [7, 1, 0, NEW - 1, 1, NEW - 1, 16],  # an event of nobody
        [7, 1, 0, NEW - 1, 1, NEW, 16],  # an event of the next one
        [7, 1, 0, NEW, 2, NEW, 16],  # more questions than numbers
        [7, 1, 0, NEW, -1, NEW, 16],
        [7, 1, 0, NEW, 1 << 61, NEW, 16],
        [7, 1, 0, NEW, 1, NEW, 8],  # queries of nobody
        [7, 1, 0, NEW, 1, NEW, 24],
        [7, 1, 0, NEW, 1, NEW, 1 << 62],
        [7, 1, 0, NEW, 1, NEW, -8, 8, 1, 0, 0, 1, 0, 24],
        [7, 1, 0, NEW, 1, NEW, 16, 8, 1, 0],  # a session that is cut short
        [7, 1, 0, NEW, 0],
    ],
)
def test_an_impossible_message_of_several_sessions_changes_none(talk: Talk, header: list[int]) -> None:
    talk.number = 7
    tensors = [
        tensor("session", np.array([header], np.int64)),
        tensor("events", talk.x_EF[None, :NEW]),
        tensor("queries", np.resize(talk.x_QF, (1, 16, talk.x_QF.shape[1]))),
    ]
    with grpc.InferenceServerClient(talk.address) as client:
        with pytest.raises(grpc.InferenceServerException, match="a session has a number") as refused:
            client.infer(MODEL, tensors)
        assert len(str(refused.value).splitlines()) == 1
        other = [8, 1, 0, 0, 0] * 90
        with pytest.raises(grpc.InferenceServerException, match=r"session has shape \[1, 450\]"):
            client.infer(MODEL, [tensor("session", np.array([other]))])
    assert talk.say(NEW, (0, 16)) == 0, "no session was opened"


@pytest.mark.parametrize("begin", [0, 150, 300 - REACH])
def test_another_head_keeps_a_session_and_so_does_another_encoder(
    native: Native,  # noqa: F811
    talk: Talk,
    make_artifact: Callable[..., Path],
    begin: int,
) -> None:
    """However many of the sender's events the server was sent, if they are enough for an answer."""
    folders = {2: make_artifact(1, head=2), 3: make_artifact(2), 4: make_artifact(1)}
    assert talk.say(begin, (300 - begin, 16), start=True) == -1
    event = 300
    for version, folder in folders.items():
        native.push(folder, version, version - 1)
        engine = Engine(folder)
        assert talk.say(event + 1, (NEW, 16)) == event + 1 + NEW - REACH, "one is missing, as ever"
        for _ in range(2):
            assert talk.say(event, (NEW, 16)) == -1
            event += NEW
            np.testing.assert_allclose(talk.y_BH, talk.expected(engine, event), rtol=EXACT)


def test_senders_that_ask_all_the_while_get_answers_of_every_encoder_and_no_resend(
    native: Native,  # noqa: F811
    make_artifact: Callable[..., Path],
) -> None:
    folders = {1: make_artifact(1), 2: make_artifact(2), 3: make_artifact(1), 4: make_artifact(3)}
    native.push(folders[1], 1)
    counts = [native.metric(f"swiftqueue_{name}_total") for name in ("resends", "sessions_opened")]
    senders, done = [sender(native, folders[1], seed) for seed in (1, 2)], threading.Event()

    def live(talk: Talk) -> set[int]:
        engines = {version: Engine(folder) for version, folder in folders.items()}
        talk.x_EF = np.tile(talk.x_EF, (100, 1))
        event, seen = 0, set[int]()
        while not done.is_set() or event < 2 * REACH:
            assert talk.say(event, (3, 16), rest=1, start=event == 0) == -1
            np.testing.assert_allclose(talk.y_BH, talk.expected(engines[talk.version], event + 3), rtol=EXACT)
            event += 4
            seen.add(talk.version)
        return seen

    with ThreadPoolExecutor(2) as pool:
        lives = [pool.submit(live, each) for each in senders]

        def answers(version: int) -> bool:
            return all(each.version == version for each in senders) or any(each.done() for each in lives)

        try:
            for version in (2, 3, 4):
                wait_until(lambda version=version: answers(version - 1))
                native.push(folders[version], version, version - 1)
            wait_until(lambda: answers(4))
        finally:
            done.set()
        assert [each.result() for each in lives] == [set(folders)] * 2
    counted(native, counts[0][0], "swiftqueue_resends_total")
    counted(native, counts[1][0] + 2, "swiftqueue_sessions_opened_total")


def test_an_encoder_that_looks_back_further_wants_what_was_never_kept(
    native: Native,  # noqa: F811
    talk: Talk,
    folder: Path,
    make_artifact: Callable[..., Path],
) -> None:
    further, short = make_artifact(1, layers=3), sender(native, folder, 2)
    assert talk.say(0, (300, 16), start=True) == -1
    assert short.say(0, (REACH, 16), start=True) == -1
    native.push(further, 2, 1)
    reach, engine = 192, Engine(further)
    assert talk.say(300, (NEW, 16)) == 300 + NEW - reach
    assert short.say(REACH, (0, 16)) == -1, "all its events are still there"
    queries = np.split(np.resize(short.x_QF, (16, short.x_QF.shape[1])), 2)
    padding = np.zeros((reach - REACH, short.x_EF.shape[1]), np.float32)
    expected = engine.forward(np.stack([np.vstack([padding, short.x_EF[:REACH], x_HF]) for x_HF in queries]))
    np.testing.assert_allclose(short.y_BH, expected, rtol=EXACT)


def limited(native: Native, folder: Path, version: int = 1, **limits: int) -> None:  # noqa: F811
    """Serve with other limits of sessions."""
    served_folder(native, folder, version)
    config = native.repository.embedded / MODEL / "config.pbtxt"
    lines = config.read_text().splitlines()
    for name, value in limits.items():
        (place,) = (i for i, line in enumerate(lines) if f'key: "{name}"' in line)
        lines[place] = f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
    write_file(config, "\n".join(lines) + "\n")
    native.triton.load(MODEL)


def test_the_least_recently_used_session_goes_for_want_of_room(native: Native, folder: Path) -> None:  # noqa: F811
    limited(native, folder, sessions=3)
    evicted = sum(native.metric("swiftqueue_sessions_evicted_total", reason="room"))
    talks = [sender(native, folder, i) for i in range(4)]
    for each in talks[:3]:
        assert each.say(0, (50, 16), start=True) == -1
    assert talks[0].say(50, (0, 16)) == -1
    assert talks[3].say(0, (50, 16), start=True) == -1
    assert [each.say(50, (0, 16)) for each in talks] == [-1, 0, -1, -1]
    counted(native, 3, "swiftqueue_sessions")
    counted(native, evicted + 1, "swiftqueue_sessions_evicted_total", reason="room")


def test_a_session_that_has_gone_is_unknown_to_another_encoder_too(
    native: Native,  # noqa: F811
    folder: Path,
    make_artifact: Callable[..., Path],
) -> None:
    limited(native, folder, sessions=2)
    talks = [sender(native, folder, seed) for seed in range(3)]
    for each in talks:
        assert each.say(0, (50, 16), start=True) == -1
    limited(native, make_artifact(2), 2, sessions=2, session_idle_s=1)
    assert [each.say(50, (0, 16)) for each in talks] == [0, -1, -1]
    wait_until(lambda: talks[1].say(50, (0, 16)) == -1 and native.metric("swiftqueue_sessions") == [1])
    limited(native, make_artifact(3), 3)
    assert [each.say(50, (0, 16)) for each in talks] == [0, -1, 0]
    assert talks[0].version == 3


def test_an_idle_session_goes(native: Native, folder: Path) -> None:  # noqa: F811
    limited(native, folder, session_idle_s=1)
    idle, busy = sender(native, folder, 1), sender(native, folder, 2)
    for each in (idle, busy):
        assert each.say(0, (50, 16), start=True) == -1
    wait_until(lambda: busy.say(50, (0, 16)) == -1 and native.metric("swiftqueue_sessions") == [1])
    assert idle.say(50, (0, 16)) == 0


def test_sessions_take_no_more_memory_than_they_may(
    native: Native,  # noqa: F811
    folder: Path,
    make_artifact: Callable[..., Path],
) -> None:
    """One takes 26 KB of rows and 64 KB of keys and values; those of another encoder evict nobody."""
    limited(native, folder, session_mib=1)
    talks = [sender(native, folder, 1) for _ in range(40)]
    for each in talks:
        assert each.say(0, (50, 16), start=True) == -1
    counted(native, 11, "swiftqueue_sessions")
    limited(native, make_artifact(2), 2, session_mib=1)
    assert [each.say(50, (0, 16)) for each in talks] == [0] * 29 + [-1] * 11
    counted(native, 11, "swiftqueue_sessions")


def test_two_instances_take_turns_at_one_session(native: Native, folder: Path) -> None:  # noqa: F811
    served_folder(native, folder, 1)
    config = native.repository.embedded / MODEL / "config.pbtxt"
    write_file(config, config.read_text().replace("count: 1", "count: 2"))
    native.triton.load(MODEL)

    def live(seed: int) -> None:
        each, engine = sender(native, folder, seed), Engine(folder)
        assert each.say(0, (8, 16), start=True) == -1
        for event in range(8, 8 + 20 * NEW, NEW):
            assert each.say(event, (NEW, 16)) == -1
            np.testing.assert_allclose(each.y_BH, each.expected(engine, event + NEW), rtol=EXACT)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live, range(4)))


@pytest.mark.long
def test_any_number_of_sessions_costs_their_cap(native: Native, folder: Path) -> None:  # noqa: F811
    limited(native, folder, sessions=256)
    process = server(native)
    kept = sender(native, folder, 1)
    assert kept.say(0, (50, 16), start=True) == -1
    header = tensor("session", np.array([[0, 8, 8]], np.int64))
    events, queries = tensor("events", kept.x_EF[None, :8]), tensor("queries", kept.x_QF[None, :8])
    held: list[int] = []
    answers, errors = threading.Semaphore(64), list[str]()
    with grpc.InferenceServerClient(native.triton.address) as client:
        client.start_stream(
            lambda result, error: (errors.append(str(error)) if error else None, answers.release())
        )
        for i in range(SESSIONS):
            assert answers.acquire(timeout=20), errors
            client.async_stream_infer(
                MODEL, [header, events, queries], sequence_id=(1 << 50) + i, sequence_start=True
            )
            if i % (SESSIONS // 10) == SESSIONS // 20:
                held.append(process.memory_info().rss)
                assert native.metric("swiftqueue_sessions")[0] <= 256
        client.stop_stream()
    assert errors == []
    assert held[-1] - held[2] < 32 << 20, (
        "without a cap 7,000 sessions take 640 MB; before, the server fills its pools"
    )
    assert kept.say(50, (0, 16)) == 0, "it was evicted, and is not mixed up with another"


def server(native: Native) -> Any:  # noqa: F811
    from swiftqueue.infra.local import processes

    record = processes.running("triton-native")
    assert record is not None
    return record.process()
