"""The engine's sessions: a sender's events are taken once, by number, and answers follow the last one."""

# Shapes: N events, Q queries, F features of a row, W window rows, L levels.

from __future__ import annotations

import copy
import json
from pathlib import Path

import mutants
import numpy as np
import pytest
import torch
from test_engine_events import EVERY, ISAS, RELATIVE, engine, exact, worst
from test_event_stream_network import LEVELS, forecaster, quantile_forecaster, save

from swiftqueue.benchmarks.inference_references import event_stream
from swiftqueue.benchmarks.inference_references import save as save_default
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.serving.engine import Engine, Isa, Session

ROW = [feature.name for feature in EVENTS.features]
EVENTS_OF_A_LOG = 1_000_000 if mutants.ALL else 10_000
SMALL = {"layers": 2, "feed_forward": 64}


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Random rows of events, SENDs and ACKs."""
    x_NF = np.random.default_rng(seed).lognormal(6, 2, (count, len(ROW)))
    for f, feature in enumerate(EVENTS.features):
        if feature.unit in ("flag", "sign"):
            x_NF[:, f] = x_NF[:, f] > np.exp(6)
    return x_NF.astype(np.float32)


def window(log_NF: np.ndarray, queries_QF: np.ndarray, reach: int) -> np.ndarray:
    """The stateless form's questions: padding, a log's last events, 8 queries."""
    events = log_NF[-reach:]
    return np.concatenate([np.zeros((reach - len(events), len(ROW)), np.float32), events, queries_QF])


def feed(ours: Engine, session: Session, x_NF: np.ndarray, first: int, cuts: np.random.Generator) -> None:
    """Events in calls of any length."""
    at = 0
    while at < len(x_NF):
        count = int(cuts.choice([1, 2, 7, 15, 16, 17, 40, 200]))
        assert ours.take(session, first + at, x_NF[at : at + count])
        at += count


@pytest.mark.parametrize("isa", ISAS)
def test_a_long_log_is_answered_as_pytorch_does(tmp_path: Path, isa: Isa) -> None:
    """From the first event on, over many turns of the ring: cut, sent twice, begun anew, the head swapped."""
    model = forecaster(**SMALL).model
    ours, reach, random = (
        engine(save(tmp_path / "m", model), isa),
        model.sizes.reach,
        np.random.default_rng(3),
    )
    session, window_BWF, got_BH, kept_NF, number = ours.open_session(), [], [], rows(0), 0
    while number < EVENTS_OF_A_LOG:
        x_NF = rows(int(random.integers(1, 60 if number < 500 else EVENTS_OF_A_LOG // 50)), number)
        kept_NF = np.concatenate([kept_NF, x_NF])[-reach:]
        feed(ours, session, x_NF, number, random)
        number += len(x_NF)
        again = min(len(kept_NF), int(random.integers(1, 30)))
        assert ours.take(session, number - again, kept_NF[-again:])
        if random.integers(4) == 0:
            session.begin(number - len(kept_NF))
            assert ours.take(session, session.next, kept_NF)
            ours.swap_head(tmp_path / "m", number)
        queries_QF = rows(8, number)
        answers_QL, version = ours.answer(session, queries_QF)
        assert version == ours.version
        got_BH.append(answers_QL[:, 0])
        window_BWF.append(window(kept_NF, queries_QF, reach))
    x_BWF = np.stack(window_BWF)
    assert worst(np.stack(got_BH), exact(model, x_BWF)[0]) <= RELATIVE
    np.testing.assert_allclose(ours.forward(x_BWF), np.stack(got_BH), rtol=RELATIVE)


@pytest.mark.parametrize("isa", EVERY)
@pytest.mark.parametrize("changes", [SMALL, {"layers": 3, "band": 128}, {"layers": 1}])
def test_no_bit_depends_on_how_events_were_cut(tmp_path: Path, isa: Isa, changes: dict[str, object]) -> None:
    """One at a time, in calls of any length, all at once; or only the last ones, resent to another engine."""
    model = forecaster(**changes).model
    folder = save(tmp_path / "m", model)
    ours, random = engine(folder, isa), np.random.default_rng(5)
    one, cut, whole, resent = (ours.open_session() for _ in range(4))
    other = ours.share()
    reach, begun = ours.reach, 2**40 + 11  # numbers are large where a log is old
    x_NF = rows(2 * reach + 100)
    for session in (one, cut, whole):
        session.begin(begun)
    taken = 0
    for count in (1, 5, 30, 28, 1, 63, 90, reach, len(x_NF)):
        part_NF = x_NF[taken : taken + count]
        for i in range(len(part_NF)):
            assert ours.take(one, begun + taken + i, part_NF[i : i + 1])
        feed(ours, cut, part_NF, begun + taken, random)
        assert ours.take(whole, begun + taken, part_NF)
        taken = min(taken + count, len(x_NF))
        last = max(0, taken - reach)
        resent.begin(begun + last)
        assert other.take(resent, begun + last, x_NF[last:taken])
        queries_QF = rows(16, taken)
        wanted_QL = ours.answer(one, queries_QF)[0]
        assert np.ptp(wanted_QL) > 0
        for session in (cut, whole, resent):
            assert session.next == begun + taken
            np.testing.assert_array_equal(other.answer(session, queries_QF)[0], wanted_QL)
        for q in (0, 3, 15):  # nor on the queries beside it
            np.testing.assert_array_equal(ours.answer(one, queries_QF[q : q + 1])[0], wanted_QL[q : q + 1])
    assert taken == len(x_NF)


def test_a_band_may_be_shorter_than_a_tile(tmp_path: Path) -> None:
    """A ring of 8 slots: the engine's own limit is lower than that of training."""
    from test_engine import write_artifact

    folder, x_NF = write_artifact(tmp_path / "m"), rows(100)
    ours = Engine(folder)
    one, whole = ours.open_session(), ours.open_session()
    for number, x_F in enumerate(x_NF):
        assert ours.take(one, number, x_F[None])
        if number % 13 == 0:
            assert ours.take(whole, whole.next, x_NF[whole.next : number + 1])
            y_QL = ours.answer(one, x_NF[:8])[0]
            np.testing.assert_array_equal(ours.answer(whole, x_NF[:8])[0], y_QL)
            x_WF = window(x_NF[: number + 1], x_NF[:8], ours.reach)
            np.testing.assert_allclose(ours.forward(x_WF)[0], y_QL[:, 0], rtol=RELATIVE)


@pytest.fixture
def ours(tmp_path: Path) -> Engine:
    return Engine(save(tmp_path / "m", forecaster(**SMALL).model))


def test_duplicates_are_skipped_and_gaps_refused(ours: Engine) -> None:
    x_NF, session = rows(100), ours.open_session()
    assert (session.next, session.first) == (0, 0)
    assert not ours.take(session, 1, x_NF[1:3])
    assert session.next == 0
    assert ours.take(session, 0, x_NF[:50])
    answer_QL = ours.answer(session, x_NF[:16])[0]
    damaged_NF = x_NF[:50] * 2
    for first, part_NF in ((0, damaged_NF), (10, damaged_NF[:5]), (49, damaged_NF[:1]), (50, x_NF[:0])):
        assert ours.take(session, first, part_NF)
        assert session.next == 50
    assert not ours.take(session, 51, x_NF[51:])
    assert not ours.take(session, 2**64 - 1, x_NF[:1])
    assert (session.next, session.first) == (50, 0)
    np.testing.assert_array_equal(ours.answer(session, x_NF[:16])[0], answer_QL)
    assert ours.take(session, 40, x_NF[40:])  # ten of them are new to nobody
    straight = ours.open_session()
    assert ours.take(straight, 0, x_NF)
    np.testing.assert_array_equal(ours.answer(session, x_NF[:16])[0], ours.answer(straight, x_NF[:16])[0])


def test_a_session_that_begins_anew_has_forgotten_all(ours: Engine) -> None:
    x_NF, session, new = rows(200), ours.open_session(), ours.open_session()
    empty_QL = ours.answer(session, x_NF[:16])[0]
    assert ours.take(session, 0, x_NF)
    assert (ours.answer(session, x_NF[:16])[0] != empty_QL).any()
    session.begin(7_000)
    assert (session.next, session.first) == (7_000, 7_000)
    np.testing.assert_array_equal(ours.answer(session, x_NF[:16])[0], empty_QL)
    new.begin(7_000)
    for each in (session, new):
        assert ours.take(each, 7_000, x_NF[:30])
    np.testing.assert_array_equal(ours.answer(session, x_NF[:16])[0], ours.answer(new, x_NF[:16])[0])


def test_answers_leave_no_trace(ours: Engine) -> None:
    x_NF, session = rows(80), ours.open_session()
    assert ours.take(session, 0, x_NF)
    first_QL = ours.answer(session, x_NF[:16])[0]
    ours.answer(session, x_NF[20:36] * 3)
    np.testing.assert_array_equal(ours.answer(session, x_NF[:16])[0], first_QL)
    assert session.next == 80


def test_a_swapped_head_keeps_sessions_and_another_encoder_does_not(tmp_path: Path, ours: Engine) -> None:
    model = forecaster(**SMALL).model
    x_NF, session = rows(90), ours.open_session()
    assert ours.take(session, 0, x_NF)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head[2].bias += 0.3
    head, encoder = save(tmp_path / "head", other), tmp_path / "encoder"
    before_QL = ours.answer(session, x_NF[:8])[0]
    ours.swap_head(head, 2)
    after_QL, version = ours.answer(session, x_NF[:8])
    assert version == 2
    assert (after_QL > before_QL).all()
    fresh = Engine(head)
    np.testing.assert_array_equal(fresh.answer(session, x_NF[:8])[0], after_QL)
    assert fresh.take(session, 90, x_NF[:10])
    with torch.no_grad():
        other.layers[0].linear2.bias[3] += 1e-6
    for change in ("weights", "scaling"):
        save(encoder, other if change == "weights" else model)
        if change == "scaling":
            described = json.loads((encoder / "model.json").read_text())
            described["features"][0]["shift"] += 1
            (encoder / "model.json").write_text(json.dumps(described))
        stranger = Engine(encoder)
        assert not stranger.take(session, 100, x_NF[:10])
        assert not stranger.take(session, 0, x_NF[:10])
        with pytest.raises(ValueError, match="the session belongs to another encoder"):
            stranger.answer(session, x_NF[:8])
    assert session.next == 100


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_and_change_nothing(ours: Engine, value: float) -> None:
    x_NF, session = rows(60), ours.open_session()
    assert ours.take(session, 0, x_NF[:40])
    before_QL = ours.answer(session, x_NF[:8])[0]
    bad_NF = x_NF[35:].copy()
    bad_NF[7, 12] = value
    with pytest.raises(ValueError, match=r"^event 42: in_flight is NaN or infinite$"):
        ours.take(session, 35, bad_NF)
    assert session.next == 40
    bad_NF[2, 12] = value  # event 37: the session has it already
    assert ours.take(session, 35, bad_NF[:7])
    with pytest.raises(ValueError, match=r"^query 2: in_flight is NaN or infinite$"):
        ours.answer(session, bad_NF[:8])
    session.begin(0)
    assert ours.take(session, 0, x_NF[:40])
    np.testing.assert_array_equal(ours.answer(session, x_NF[:8])[0], before_QL)


def test_values_that_are_too_large_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", forecaster(**SMALL).model)
    described = json.loads((folder / "model.json").read_text())
    for key in ("features", "queries"):
        for feature in described[key]:
            if feature["name"] == "queue_l4s":
                feature["scale"] = 1e-3
    (folder / "model.json").write_text(json.dumps(described))
    ours, x_NF = Engine(folder), rows(60)
    session, new = ours.open_session(), ours.open_session()
    assert ours.take(session, 0, x_NF[:20])
    bad_NF = x_NF[20:].copy()
    bad_NF[30, ROW.index("queue_l4s")] = 3e38
    with pytest.raises(ValueError, match="events from 20 on: their values are too large to predict from"):
        ours.take(session, 20, bad_NF)
    assert (session.next, session.first) == (20, 20)
    with pytest.raises(ValueError, match="query 1: its values are too large to predict from"):
        ours.answer(session, bad_NF[29:32])
    new.begin(20)
    for each in (session, new):
        assert ours.take(each, 20, x_NF[20:])
    np.testing.assert_array_equal(ours.answer(session, x_NF[:8])[0], ours.answer(new, x_NF[:8])[0])


@pytest.mark.parametrize("queries", [0, 17])
def test_a_call_answers_1_to_16_queries(ours: Engine, queries: int) -> None:
    with pytest.raises(ValueError, match=f"{queries} queries: a call answers 1 to 16"):
        ours.answer(ours.open_session(), rows(queries))
    with pytest.raises(ValueError, match=r"this model takes \(…, 52\)"):
        ours.take(ours.open_session(), 0, rows(2)[:, 1:])


@pytest.mark.parametrize("isa", ISAS)
def test_quantiles_ascend(tmp_path: Path, isa: Isa) -> None:
    model = quantile_forecaster().model
    with torch.no_grad():
        model.head[2].bias[0] += 1.5  # the lowest level is above others now
    ours, x_NF = engine(save(tmp_path / "m", model), isa), rows(64)
    session = ours.open_session()
    assert ours.take(session, 0, x_NF)
    wanted_BHL = np.sort(exact(model, window(x_NF, x_NF[:8], 64)[None])[0])
    assert wanted_BHL.shape == (1, 8, len(LEVELS))
    assert worst(ours.answer(session, x_NF[:8])[0], wanted_BHL[0]) <= RELATIVE


def test_a_session_of_the_default_network_has_64_kb(tmp_path: Path) -> None:
    ours = Engine(save_default(tmp_path / "m"))
    sizes = event_stream().sizes
    assert ours.reach == sizes.layers * sizes.band
    assert 2**16 <= ours.open_session().bytes <= 2**16 + 256


def test_two_queues_of_one_batch_are_answered_alike(ours: Engine) -> None:
    """Windows in a row that have the same events, and windows that do not."""
    x_NF = rows(ours.reach + 40)
    asked = ((0, 0), (0, 8), (9, 8), (0, 8))  # events left out, first query
    same = [window(x_NF[: n + ours.reach], x_NF[q : q + 8], ours.reach) for n, q in asked]
    together_BH = ours.forward(np.stack(same))
    for x_WF, y_H in zip(same, together_BH, strict=True):
        np.testing.assert_array_equal(ours.forward(x_WF)[0], y_H)
