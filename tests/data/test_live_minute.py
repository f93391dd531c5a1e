"""A live round's arithmetic agrees with the offline code, on a made-up sender and without a service."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from toy_world import START_NS, bottleneck_table, write_artifact

from swiftqueue.feature_store.events.beginning import NOTHING
from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.queries import replayed
from swiftqueue.models.forecasters.traces import TracePart, decision_times
from swiftqueue.models.networks import artifact
from swiftqueue.models.registry import gate
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live import DRIFT, watch
from swiftqueue.pipelines.live.encoding import Decisions
from swiftqueue.pipelines.live.encoding import load as load_version
from swiftqueue.pipelines.live.minute import Minute, TuningResult, tune
from swiftqueue.pipelines.live.rounds_log import DeclinedError
from swiftqueue.pipelines.live.slices import KEPT, SliceFolder, encoder_of
from swiftqueue.pipelines.live.watch import HeadPair, compare

pytestmark = pytest.mark.slow  # it trains heads

ENGINE = {"width": 64, "heads": 4, "feed_forward": 128}  # sizes that the engine computes
PARAMS = FinetuneParams(seed=1, workers=1, epochs=3, batch_size=64, learning_rate=1e-3, sharp_weight=1)
LONGER = PARAMS.model_copy(update={"epochs": 20})
S = 1_000_000_000


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("champion") / "model"
    write_artifact(folder, bottleneck_table("live", seconds=12), **ENGINE, anchor="last_latency_flow_us")
    return folder


@pytest.fixture(scope="module")
def packets() -> pl.DataFrame:
    return bottleneck_table("live", seconds=12)


def minute(packets: pl.DataFrame, champion: Path, **changes: Any) -> Minute:
    values: dict[str, Any] = {
        "packets": packets,
        "beginning": NOTHING,
        "learn_from_ns": START_NS + 2 * S,
        "judge_from_ns": START_NS + 9 * S,
        "champion": artifact.read_files(champion),
        "params": PARAMS,
        "trained_on": None,
        "least_decisions": 10,
    }
    return Minute(**(values | changes))


def learns_from(one: Minute) -> int:
    """Return the number of decisions to learn from, as a round names it that wants more of them."""
    with pytest.raises(DeclinedError, match="decisions to learn from") as declined:
        tune(replace(one, least_decisions=10**9))
    return int(str(declined.value).split()[0])


@pytest.fixture(scope="module")
def tuned(packets: pl.DataFrame, champion: Path) -> TuningResult:
    return tune(minute(packets, champion))


def load(files: dict[str, bytes], folder: Path) -> artifact.Artifact:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return artifact.load(folder)


def whole(packets: pl.DataFrame, from_s: int, to_s: int = 100) -> TracePart:
    """Return the decisions of some seconds, with the log before them."""
    lo, hi = np.searchsorted(decision_times(packets), [START_NS + from_s * S, START_NS + to_s * S])
    return TracePart("live", packets, Slice(int(lo), int(hi)))


def test_the_head_is_the_one_that_offline_fine_tuning_gives(
    packets: pl.DataFrame, champion: Path, tuned: TuningResult, tmp_path: Path
) -> None:
    parent = door.load(champion)
    assert isinstance(parent, EventStreamForecaster)
    known = pl.col("acked_ns") <= START_NS + 9 * S
    then = packets.with_columns(latency_us=pl.when(known).then("latency_us"))
    learnt = whole(packets, 2, 9)
    offline = parent.tuned_on(parent.encode(learnt), whole(then, 2, 9).latencies_us(), learnt.change, PARAMS)
    live = load(dict(tuned.files), tmp_path)
    for name, expected in offline.model.state_dict().items():
        torch.testing.assert_close(live.model.state_dict()[name], expected, rtol=1e-3, atol=1e-4)
    assert tuned.loss is not None
    assert tuned.loss[1] < tuned.loss[0]
    for name, expected in parent.model.encoder_state().items():
        assert torch.equal(live.model.encoder_state()[name], expected)
    assert "send_rate_flow" in tuned.psi
    again = tune(minute(packets, champion, earlier=tuned.slices, reference=artifact.read_files(champion)))
    assert again.figures["reference"] == again.figures["champion"]


def test_a_fast_senders_minute_is_passed_over_fewer_times(
    packets: pl.DataFrame, champion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tune(minute(packets, champion, params=PARAMS.model_copy(update={"epochs": 1})))
    monkeypatch.setattr("swiftqueue.pipelines.live.minute.MOST_STEPS", 1)
    assert PARAMS.epochs > 1
    assert tune(minute(packets, champion)).files == once.files


def trees_of(packets: pl.DataFrame, folder: Path) -> Path:
    """Write trees as the registry has them."""
    from swiftqueue.models.trees.forecaster import Trees, TreesParams

    folder.mkdir()
    Trees.fit([whole(packets, 0, 6)], TreesParams(rounds=20), 1, print).export(folder)
    return folder


def test_a_round_leaves_a_champion_without_a_head_as_it_is(packets: pl.DataFrame, tmp_path: Path) -> None:
    """It is judged and its inputs' drift is measured, so that a re-train can begin; nothing is pushed."""
    trees = trees_of(packets, tmp_path / "trees")
    one = tune(minute(packets, trees, memory_decisions=64))
    assert (one.loss, one.verdict.passed) == (None, False)
    assert one.verdict.reason == "trees has no head to tune, so the champion stays"
    assert one.figures["challenger"] == one.figures["champion"]
    assert one.files == artifact.read_files(trees)
    assert "send_rate_flow" in one.psi
    again = tune(minute(packets, trees, earlier=one.slices))
    assert again.figures["champion"]["log_mae"] == pytest.approx(one.figures["champion"]["log_mae"], rel=1e-6)


def test_trees_of_a_retrain_are_judged_untuned(packets: pl.DataFrame, champion: Path, tmp_path: Path) -> None:
    trees = trees_of(packets, tmp_path / "trees")
    one = tune(minute(packets, champion, retrained=artifact.read_files(trees)))
    assert one.loss is None
    assert one.verdict.passed  # the champion is untrained
    assert one.figures["challenger"]["log_mae"] < one.figures["champion"]["log_mae"]
    assert one.files == artifact.read_files(trees)
    back = tune(minute(packets, trees, retrained=artifact.read_files(champion)))
    assert back.loss is not None


def test_it_is_judged_on_the_slice_after_the_one_it_learned_from(
    packets: pl.DataFrame, champion: Path, tuned: TuningResult
) -> None:
    judged = whole(packets, 9)
    here = slice(judged.decisions.lo, judged.decisions.hi)
    held_out = gate.HeldOutDecisions(
        replayed(judged).x_DHF,
        judged.latencies_us(),
        decision_times(packets)[here],
        tuple(each.name for each in INPUTS),
    )
    expected = gate.score(door.load(champion).predict(judged), held_out).figures
    assert tuned.figures["champion"]["log_mae"] == pytest.approx(expected.log_mae, rel=1e-4)
    assert tuned.figures["challenger"]["log_mae"] != tuned.figures["champion"]["log_mae"]
    assert tuned.verdict.passed
    assert tuned.figures["champion"]["n"] == expected.n


def test_what_is_acknowledged_later_does_not_teach(packets: pl.DataFrame, champion: Path) -> None:
    """No leak: latencies that became known after the training cut change nothing in the head."""
    later = pl.col("acked_ns") > START_NS + 9 * S
    changed = packets.with_columns(latency_us=pl.when(later).then(5.0).otherwise("latency_us"))
    one, two = tune(minute(packets, champion)), tune(minute(changed, champion))
    assert one.files == two.files


def test_a_batch_border_is_a_batch_border(packets: pl.DataFrame, champion: Path) -> None:
    """Telemetry that begins within a batch loses that batch and shifts none of the others."""
    part = packets[3:]
    whole, cut = minute(packets, champion), minute(part, champion)
    assert learns_from(whole) == learns_from(cut)
    assert tune(whole).figures["champion"]["n"] == tune(cut).figures["champion"]["n"]


def test_a_minute_that_is_told_its_beginning_is_the_minute_of_the_whole_log(
    packets: pl.DataFrame, champion: Path, tmp_path: Path
) -> None:
    """The same head as from the whole log, although its first second, with the flows' starts, is cut off."""
    least = pl.col("sent_ns") < START_NS + S // 2
    packets = packets.with_columns(
        latency_us=pl.when(least).then(pl.col("latency_us") / 2).otherwise("latency_us")
    )
    cut = packets.filter(pl.col("sent_ns") >= START_NS + S)[5:]
    beginning = NOTHING.moved(packets, packets.height - cut.height)
    learn = {"learn_from_ns": START_NS + 6 * S}  # 5 s of lead-in
    whole, known, unknown = (
        tune(one)
        for one in (
            minute(packets, champion, **learn),
            minute(cut, champion, beginning=beginning, **learn),
            minute(cut, champion, **learn),
        )
    )
    assert known.files == whole.files
    assert known.figures == whole.figures
    assert unknown.files != whole.files
    # A slice that is kept to judge again is told its own beginning.
    (ours,), (theirs,) = known.slices, whole.slices
    SliceFolder(tmp_path).keep((ours,))
    (kept,) = SliceFolder(tmp_path).recent()
    assert kept.beginning == ours.beginning == theirs.beginning
    assert kept.beginning.flow_starts_ns.keys() == set(packets["flow_id"])
    anew = kept.by("anew", load_version(artifact.read_files(champion)))
    assert anew.decisions.candidates_BHF.tobytes() == theirs.decisions.candidates_BHF.tobytes()


def test_inputs_that_have_drifted_show(packets: pl.DataFrame, champion: Path, tuned: TuningResult) -> None:
    assert max(tuned.psi.values()) == 0  # nothing is known of the training: the minute stands for it
    other = bottleneck_table("live", seconds=12, seed=7)  # the same kind of traffic
    slow = packets.with_columns(latency_us=pl.col("latency_us") * 4)
    again = tune(minute(other, champion, trained_on=tuned.trained_on))
    drifted = tune(minute(slow, champion, trained_on=tuned.trained_on))
    assert max(again.psi.values()) < DRIFT
    assert drifted.psi["last_latency_us"] > DRIFT


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda p: p[:0], "no packet was sent"),
        (lambda p: p[:4], "no packet was sent|0 decisions"),
        (lambda p: pl.concat([p[:5000], p[5001:]]), "telemetry has a gap before packet 5001"),
        (lambda p: p.with_columns(latency_us=pl.lit(None, pl.Float32)), "no latency was known"),
        (lambda p: p[:2000], "0 decisions to learn from|decisions to learn from"),
    ],
)
def test_nothing_sound_to_learn_from_is_declined(
    packets: pl.DataFrame, champion: Path, change: Any, line: str
) -> None:
    with pytest.raises(DeclinedError, match=line):
        tune(minute(change(packets), champion))


@pytest.fixture(scope="module")
def long() -> pl.DataFrame:
    return bottleneck_table("live", seconds=20, swing_ms=40)  # a head can learn it


def at(long: pl.DataFrame, champion: Path, now_s: int, **changes: Any) -> Minute:
    """Return a round at a time, with six seconds to learn from and two to judge on."""
    packets = long.filter(pl.col("sent_ns") <= START_NS + now_s * S)
    spans = {"learn_from_ns": START_NS + (now_s - 8) * S, "judge_from_ns": START_NS + (now_s - 2) * S}
    return minute(packets, champion, **spans, **changes)


def test_what_judged_before_judges_again_and_teaches_nothing(
    long: pl.DataFrame, champion: Path, tmp_path: Path
) -> None:
    (first,) = tune(at(long, champion, 9)).slices
    store = SliceFolder(tmp_path)
    store.keep((first,))
    kept = store.recent()
    alone, both = tune(at(long, champion, 17)), tune(at(long, champion, 17, earlier=kept))
    assert both.figures["champion"]["n"] > 1.9 * alone.figures["champion"]["n"]
    assert both.figures["champion"]["seconds"] >= 4
    assert both.files == alone.files  # it lies before what is learned from
    overlapping = learns_from(at(long, champion, 12, earlier=kept))
    assert overlapping == pytest.approx(learns_from(at(long, champion, 12)) * 4 / 6, rel=0.1)
    # Whatever its latencies were, they change nothing in the head.
    inside = pl.col("sent_ns").is_between(first.from_ns, first.to_ns + S // 10)
    other = long.with_columns(latency_us=pl.when(inside).then(None).otherwise("latency_us"))
    assert learns_from(at(other, champion, 12, earlier=kept)) == overlapping
    # One second later it would be most of the same seconds: they judge once, and are not kept twice.
    soon = tune(at(long, champion, 10, earlier=kept))
    assert soon.figures["champion"]["n"] == tune(at(long, champion, 10)).figures["champion"]["n"]
    assert soon.slices == ()


def test_a_slice_is_the_same_for_whoever_encodes_it(
    long: pl.DataFrame, champion: Path, tmp_path: Path
) -> None:
    """From its own packets, with the lead-in alone, and by an encoder of other sizes and weights."""
    (first,) = tune(at(long, champion, 9)).slices
    (later,) = tune(at(long, champion, 17)).slices  # begins with a lead-in of five seconds
    assert later.packets.height < long.height / 2
    for one in (first, later):
        anew = one.by("anew", load_version(artifact.read_files(champion)))
        np.testing.assert_allclose(anew.decisions.read_BRD, one.decisions.read_BRD, rtol=1e-4, atol=1e-4)
    write_artifact(tmp_path / "other", long, **ENGINE, layers=2, anchor="last_latency_flow_us")
    files = artifact.read_files(tmp_path / "other")
    judged = tune(at(long, champion, 17, earlier=(first,), retrained=files, params=LONGER))
    expected = tune(at(long, champion, 17, earlier=(first,)))
    theirs = judged.figures["champion"]["log_mae"]
    assert theirs == pytest.approx(expected.figures["champion"]["log_mae"], rel=1e-4)
    # A version that passed keeps its encoder, so no round encodes the old slices again.
    assert judged.verdict.passed, judged.verdict.reason
    narrow = encoder_of(load_version(files))
    assert [one.encoder for one in judged.slices] == [narrow, narrow]


def test_the_reference_judges_with_the_champion(long: pl.DataFrame, champion: Path) -> None:
    """One that is far better; beside the champion alone the challenger is not worse."""
    good = tune(at(long, champion, 17, params=LONGER))
    weak = PARAMS.model_copy(update={"epochs": 1, "learning_rate": 1e-5})
    alone = tune(at(long, champion, 17, params=weak))
    beside = tune(at(long, champion, 17, params=weak, reference=good.files))
    assert not alone.verdict.reason.startswith("worse")
    assert not beside.verdict.passed
    assert beside.verdict.reason.startswith("worse than the reference: ")
    assert beside.figures["reference"]["log_mae"] < beside.figures["challenger"]["log_mae"]


def test_a_slice_that_is_damaged_costs_itself_alone(
    long: pl.DataFrame, champion: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SliceFolder(tmp_path / "slices")
    (first,) = tune(at(long, champion, 9)).slices
    (second,) = tune(at(long, champion, 17)).slices
    store.keep((first, second))
    oldest = min((tmp_path / "slices").iterdir())
    oldest.write_bytes(oldest.read_bytes()[:-100])
    (tmp_path / "slices" / "empty.npz").touch()  # as after a power cut
    np.savez(tmp_path / "slices" / "older.npz", packets=np.zeros(1))
    (found,) = store.recent()
    assert found.from_ns == second.from_ns
    said = capsys.readouterr().out
    assert said.count("cannot be read and is put aside") == 3
    assert "older.unreadable: an earlier version wrote it" in said
    aside = list((tmp_path / "slices").glob("*.unreadable"))
    assert len(aside) == 3
    for file in aside:
        file.unlink()
    for number in range(KEPT + 2):
        store.keep((replace(first, from_ns=number),))
    assert [one.from_ns for one in store.recent()] == list(range(2, KEPT + 2))
    for file in (tmp_path / "slices").iterdir():  # the clock is set back by an hour
        later_ns = file.stat().st_mtime_ns + 3600 * S
        os.utime(file, ns=(later_ns, later_ns))
    for number in range(KEPT + 2, KEPT + 4):
        store.keep((replace(first, from_ns=number),))
    assert [one.from_ns for one in store.recent()] == list(range(4, KEPT + 4))


def spoilt(champion: Path, folder: Path) -> dict[str, bytes]:
    """Return the champion with a deliberately bad head, whose answers are five times as large."""
    loaded = artifact.load(champion)
    with torch.no_grad():
        loaded.model.head[2].bias += np.log(5) / loaded.model.target.scale
    artifact.save(folder, loaded.model, loaded.description.protocol)
    return artifact.read_files(folder)


@pytest.mark.parametrize("spoils", [True, False])
def test_two_heads_beside_each_other_on_what_came_since(
    long: pl.DataFrame, champion: Path, tmp_path: Path, spoils: bool
) -> None:
    good = artifact.read_files(champion)
    head = spoilt(champion, tmp_path / "bad") if spoils else good
    found = compare(HeadPair(long, NOTHING, START_NS + 9 * S, head, good))
    assert found.seconds == pytest.approx(11, abs=0.3)
    assert found.batches == pytest.approx(11 * 1000 / 8, rel=0.1)
    ours, theirs = found.figures["head"], found.figures["other"]
    assert (ours["log_mae"] > 1.05 * theirs["log_mae"]) == spoils
    assert bool(found.inferior) == spoils
    assert (found.worse.get("log-error", 0) > 0.05) == spoils
    assert compare(HeadPair(long, NOTHING, START_NS + 100 * S, head, good)).batches == 0


def test_some_of_the_windows_are_those_that_all_would_be(
    long: pl.DataFrame, champion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in eleven, across the borders of what is encoded at once."""
    first, every = 37, 11
    version = load_version(artifact.read_files(champion))
    part = TracePart("live", long, Slice(first, first + 1500))
    whole = Decisions.of(version, part).chosen(slice(None, None, every))
    some = Decisions.of(version, replace(part, every=every))
    for name, array in some.arrays.items():
        np.testing.assert_array_equal(array, whole.arrays[name])
    np.testing.assert_array_equal(replace(part, every=every).latencies_us(), part.latencies_us()[::every])
    good = artifact.read_files(champion)
    pair = HeadPair(long, NOTHING, START_NS + 9 * S, good, good)
    everything = compare(pair).figures["head"]["log_mae"]
    monkeypatch.setattr(watch, "MOST_DECISIONS", 300)
    assert compare(pair).figures["head"]["n"] < 8 * 300
    assert compare(pair).figures["head"]["log_mae"] == pytest.approx(everything, rel=0.1)


def test_a_reservoir_teaches_beside_the_minute_and_takes_it_in(
    packets: pl.DataFrame, champion: Path, tuned: TuningResult
) -> None:
    assert tuned.reservoir is None  # the default
    assert tuned.remembered == 0
    first = tune(minute(packets, champion, memory_decisions=300))
    assert first.files == tuned.files, "an empty one changes nothing"
    assert first.reservoir is not None
    assert 0 < sum(map(len, first.reservoir.kept)) <= 300
    again = tune(minute(packets, champion, memory_decisions=300, reservoir=first.reservoir))
    assert again.files == tuned.files, "what the minute holds itself teaches once"
    assert again.remembered == 0
    other = bottleneck_table("other", seconds=12, seed=5, episodes=True)
    before = tune(minute(other, champion, memory_decisions=300)).reservoir
    beside = tune(minute(packets, champion, memory_decisions=300, reservoir=before))
    assert beside.remembered > 0
    assert beside.files != tuned.files
    assert beside.reservoir is not None
    assert {one.sender for one in beside.reservoir.kept} == {"live", "other"}
    assert sum(map(len, beside.reservoir.kept)) <= 300
    off = tune(minute(packets, champion, memory_decisions=0, reservoir=before))
    assert off.files == tuned.files


def test_nothing_of_a_slice_that_judges_is_remembered(packets: pl.DataFrame, champion: Path) -> None:
    from swiftqueue.pipelines.live.reservoir import STRETCH_NS

    first = tune(minute(packets, champion, judge_from_ns=START_NS + 4 * S, memory_decisions=5000))
    judging = first.slices[-1]
    later = tune(
        minute(
            packets,
            champion,
            learn_from_ns=START_NS + 2 * S,
            earlier=(replace(judging, to_ns=START_NS + 6 * S),),
            memory_decisions=5000,
        )
    )
    assert later.reservoir is not None
    seconds = {(one.from_ns - START_NS) // STRETCH_NS for one in later.reservoir.kept}
    assert seconds.isdisjoint({4, 5})
    assert {2, 3, 7, 8} <= seconds
