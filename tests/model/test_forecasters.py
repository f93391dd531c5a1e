"""Any forecaster is fitted, tuned, asked, saved and loaded by one interface, and none sees the future."""

# Shapes: B decisions, H horizon (8 packets), N packets.

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import toy_world
import yaml
from event_memory import ask, extend
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import swiftqueue
from swiftqueue.feature_store.events.event_stream import AS_SENT, INPUTS, replay_events
from swiftqueue.feature_store.events.event_stream import EventStream as LiveEvents
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.packets.truth import Waits
from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.event_stream.network import EventPredictor
from swiftqueue.models.event_stream.training import _Lesson, _untrained
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.comparison import FORMS, HeldOutPackets, JudgingParams, run
from swiftqueue.models.forecasters.forecaster import Forecaster, variants
from swiftqueue.models.forecasters.queries import EVENT_INPUTS, QUERY_INPUTS, Inputs, replayed
from swiftqueue.models.forecasters.traces import Trace, TracePart, decision_times, within_training
from swiftqueue.models.training.calibration import missed
from swiftqueue.models.training.protocol import EvaluationProtocol, Slice, divide
from swiftqueue.models.window.windows import NAMES as WINDOW_INPUTS
from swiftqueue.models.window.windows import schema_hash, windows_of

PROTOCOL = EvaluationProtocol("toy", 1.6, 0.4, 0.5)
JUDGING = JudgingParams(round_s=0, false_alarm_rate=0.01, finetune=toy_world.TUNING)
QUICK = {  # sizes that are large enough to be trained, and quick
    "epochs": 1,
    "segments": 2,
    "segment_events": 128,
    "rounds": 5,
    "width": 16,
    "feed_forward": 32,
}
NAMES = [
    *("event-stream", "event-stream-2", "event-stream-2-no-rates", "event-stream-2-no-queueing"),
    *("mlp-no-rates", "event-stream-quantiles", "event-stream-split"),
    *("event-stream-calibrated", "ceiling", "mlp", "mlp-quantiles"),
    *("window", "window-queueing", "bilstm"),
    *("paper", "paper-mse", "paper-bilstm", "paper-xgboost"),
    *("xgboost", "virtual-queue", "virtual-queue-online"),
    *("expected", "ewma-flow", "last-flow", "last-queue", "last-sender"),
]


def trace(table: pl.DataFrame, name: str = "t") -> Trace:
    return Trace(name, table, divide(decision_times(table), PROTOCOL, name))


@pytest.fixture(scope="module")
def toy() -> Trace:
    return trace(toy_world.bottleneck_table("t", 2.7, seed=3, swing_ms=40, episodes=True))


@pytest.fixture(scope="module")
def quick(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project's variants, made small."""
    sections = yaml.safe_load((project / "forecasters.yaml").read_text())
    for sizes in sections.values():
        sizes.update({key: value for key, value in QUICK.items() if key in sizes})
    path = tmp_path_factory.mktemp("quick") / "forecasters.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


@pytest.fixture(scope="module")
def fitted(quick: Path, toy: Trace) -> dict[str, Forecaster]:
    part = toy.to_learn(toy.slices.pretrain)
    return {each.name: each.fit([part], seed=1) for each in variants(quick)}


@pytest.fixture
def model(name: str, fitted: dict[str, Forecaster]) -> Any:
    """Return the fitted forecaster that the test's parameter names."""
    return fitted[name]


def test_the_published_variants_are_those_tested(project: Path) -> None:
    assert sorted(each.name for each in variants(project / "forecasters.yaml")) == sorted(NAMES)


@pytest.mark.parametrize(
    ("section", "variant"),
    [("event-stream", "event-stream-2"), ("mlp", "mlp"), ("trees", "xgboost")],
)
def test_the_loops_network_is_the_variant_that_is_compared(project: Path, section: str, variant: str) -> None:
    loop = yaml.safe_load((project / "params.yaml").read_text())[section]
    compared = yaml.safe_load((project / "forecasters.yaml").read_text())[variant]
    shared = set(loop) & set(compared)
    assert {"rounds", "left_out"} <= shared or {"layers", "anchor", "epochs", "sharp_weight"} <= shared
    assert {key: loop[key] for key in shared} == {key: compared[key] for key in shared}


def test_the_papers_time_is_a_packets_since_its_flows_first(project: Path) -> None:
    """arXiv 2410.06112, section 4.1.3; an age at the decision is another input."""
    papers = [each for each in variants(project / "forecasters.yaml") if each.name.startswith("paper")]
    for each in papers:
        params: Any = each.params
        assert {name for name in params.inputs if "age" in name} == {"flow_age_us"}, each.name


def test_what_is_learned_from_ends_with_its_slice(toy: Trace) -> None:
    part = toy.to_learn(Slice(10, 50))
    now_ns = int(toy.packets["sent_ns"][400])
    whole = toy.packets.head(400)
    assert part.packets.height == 400
    assert (part.packets["acked_ns"].drop_nulls() <= now_ns).all()
    later = (whole["acked_ns"] > now_ns).fill_null(False)
    assert later.any()
    assert part.packets.filter(later)["latency_us"].null_count() == later.sum()
    assert part.packets.filter(~later).equals(whole.filter(~later))
    earlier, held_out = part.held_out(0.25)
    assert (earlier.decisions, held_out.decisions) == (Slice(10, 40), Slice(40, 50))
    assert earlier.packets.height == 320
    assert held_out.packets is part.packets


def test_what_is_held_out_has_a_known_latency(toy: Trace) -> None:
    """A short slice may end in a wait so long that nothing of its last tenth is known."""
    part = toy.to_learn(Slice(10, 50))
    silent = pl.when(pl.int_range(pl.len()) < 30 * 8).then("latency_us")
    part = replace(part, packets=part.packets.with_columns(latency_us=silent))
    earlier, held_out = part.held_out(0.25)
    assert (earlier.decisions, held_out.decisions) == (Slice(10, 25), Slice(25, 50))
    assert np.isfinite(held_out.latencies_us()).any()
    nothing = replace(part, packets=part.packets.with_columns(latency_us=pl.lit(None, pl.Float32)))
    assert nothing.held_out(0.25)[1].decisions == Slice(40, 50)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_forecast_depends_on_what_comes_after_its_decision(model: Any, toy: Trace) -> None:
    """Cut through a trace at a decision: what was decided before is the same, for each queue."""
    last = 260
    cut = toy.to_learn(Slice(200, last)).packets
    # The decision itself names the packets of its batch, and nothing of what becomes of them.
    batch = toy.packets[last * 8 : last * 8 + 8].with_columns(
        acked_ns=pl.lit(None, pl.Int64), latency_us=pl.lit(None, pl.Float32)
    )
    for queue in (AS_SENT, 0, 1):
        whole_BH = model.predict(TracePart("t", toy.packets, Slice(200, last + 1)), queue)
        cut_BH = model.predict(TracePart("t", pl.concat([cut, batch]), Slice(200, last + 1)), queue)
        assert whole_BH.shape == (last + 1 - 200, 8)
        assert np.isfinite(whole_BH).all()
        np.testing.assert_array_equal(whole_BH, cut_BH)


@pytest.mark.parametrize("name", NAMES)
def test_no_forecast_depends_on_packets_of_its_batch_that_the_sender_did_not_tell_of(
    name: str, model: Any, toy: Trace
) -> None:
    """Cut through a batch: what its packets 2 to 8 are changes the answer only of a sender who tells."""
    last = 260
    batch = (pl.col("packet") > last * 8) & (pl.col("packet") < last * 8 + 8)
    others = toy.packets.head(last * 8 + 8).with_columns(
        size_bytes=pl.when(batch).then(pl.lit(77, pl.Int32)).otherwise("size_bytes"),
        flow_id=pl.when(batch).then(pl.col("flow_id") + 1000).otherwise("flow_id"),
        queue=pl.when(batch).then(pl.lit("classic", pl.Enum(["classic", "l4s"]))).otherwise("queue"),
    )
    for told, same in (("first", True), ("flows", False), ("all", False)):
        asked = Slice(last - 20, last + 1)
        before, after = (
            model.predict(TracePart("t", table, asked, told=told)) for table in (toy.packets, others)
        )
        np.testing.assert_array_equal(before[:-1], after[:-1])
        if same:
            np.testing.assert_array_equal(before, after)
        elif name in ("event-stream", "mlp", "window", "last-flow"):
            assert not np.array_equal(before, after), told


@pytest.mark.parametrize(
    "name", ["event-stream-quantiles", "event-stream-split", "event-stream-calibrated", "mlp-quantiles"]
)
def test_quantiles_ascend_and_the_forecast_is_their_median(
    name: str, fitted: dict[str, Forecaster], toy: Trace
) -> None:
    model = fitted[name]
    part = toy.to_predict(toy.slices.rounds[0].test)
    for each in (model, model.tuned(toy.to_learn(toy.slices.rounds[0].finetune), toy_world.TUNING)):
        for queue in (AS_SENT, 0, 1):
            spread = each.spread(each.encode(part, queue))
            assert spread is not None
            assert spread.us_BHL.shape == (len(part), 8, len(spread.levels))
            assert (np.diff(spread.us_BHL) >= 0).all()
            np.testing.assert_array_equal(spread.median_us, each.predict(part, queue))
    plain = fitted["event-stream"]
    assert plain.spread(plain.encode(part)) is None


def slice_missed(network: EventPredictor, model: EventStreamForecaster, part: TracePart) -> np.ndarray:
    return missed(network, model.encode(part), part.latencies_us())


@pytest.mark.parametrize("name", ["event-stream-split", "event-stream-calibrated"])
def test_levels_are_moved_by_what_the_head_had_not_learned(
    name: str, fitted: dict[str, Forecaster], toy: Trace
) -> None:
    """The training and the tuning are those of the head without; each slice calibrates before it tunes."""
    plain, model = fitted["event-stream-quantiles"], fitted[name]
    assert isinstance(plain, EventStreamForecaster)
    assert isinstance(model, EventStreamForecaster)
    for mine, theirs in zip(model.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    moved = model._calibrated().head[2].bias - model.model.head[2].bias
    assert (moved != 0).any()
    tuning = toy.to_learn(toy.slices.rounds[0].finetune)
    tuned = model.tuned(tuning, toy_world.TUNING)
    if name == "event-stream-split":
        learnt, held_out = tuning.held_out(0.2)
        expected = [slice_missed(tuned.model, tuned, held_out)]
        assert torch.equal(
            tuned.model.head[2].weight, plain.tuned(learnt, toy_world.TUNING).model.head[2].weight
        )
    else:
        expected = [*model.past, slice_missed(model.model, model, tuning)]
        assert torch.equal(
            tuned.model.head[2].weight, plain.tuned(tuning, toy_world.TUNING).model.head[2].weight
        )
    assert [each.tolist() for each in tuned.past] == [each.tolist() for each in expected]


@pytest.mark.parametrize("name", ["event-stream-split", "event-stream-calibrated"])
def test_calibration_reads_nothing_that_was_acknowledged_later(
    name: str, fitted: dict[str, Forecaster], toy: Trace
) -> None:
    """Other latencies of what the slice's end did not know yet change no level; those it knew do."""
    model, slice_ = fitted[name], toy.slices.rounds[0].finetune
    now_ns = int(toy.packets["sent_ns"][slice_.hi * 8])
    late = (pl.col("acked_ns") > now_ns).fill_null(False)

    def slower(some: pl.Expr) -> Trace:
        latency = pl.when(some).then(pl.col("latency_us") * 5).otherwise("latency_us")
        return replace(toy, packets=toy.packets.with_columns(latency_us=latency))

    part = toy.to_predict(toy.slices.rounds[0].test)
    every = [
        model.tuned(each.to_learn(slice_), toy_world.TUNING) for each in (toy, slower(late), slower(~late))
    ]
    spreads = [each.spread(each.encode(part)) for each in every]
    same, later, known = (each.us_BHL for each in spreads if each)
    np.testing.assert_array_equal(same, later)
    assert (same != known).any()


@pytest.mark.parametrize("name", ["event-stream-split", "event-stream-calibrated"])
def test_a_slice_without_a_known_latency_changes_nothing(
    name: str, fitted: dict[str, Forecaster], toy: Trace
) -> None:
    model, slices = fitted[name], toy.slices.rounds[0]
    silent = toy.packets.with_columns(latency_us=pl.lit(None, pl.Float32))
    tuned = model.tuned(TracePart("t", silent, slices.finetune).to_learn(), toy_world.TUNING)
    part = toy.to_predict(slices.test)
    assert isinstance(model, EventStreamForecaster)
    wanted = model if name == "event-stream-calibrated" else EventStreamForecaster(model.model)
    np.testing.assert_array_equal(tuned.predict(part), wanted.predict(part))


def test_queues_are_scored_where_their_waits_are_known(quick: Path, toy: Trace) -> None:
    """Who knows the waits has no regret; whoever cannot tell the queues apart never moves."""
    count = toy.packets.height
    random = np.random.default_rng(1)
    classic, l4s = (random.uniform(0, 2e4, count).astype(np.float32) for _ in range(2))
    known = replace(toy, waits=Waits(classic, l4s, np.arange(count) % 2 == 0))
    asked = HeldOutPackets.of([known])
    [last] = variants(quick, ["last-flow"])
    found = run(last, 1, [known], asked, JUDGING, lambda _: None)
    choice = found["tuned"]["choice"]
    assert "choice" not in found["pretrained"] or found["pretrained"]["choice"] == choice
    tested = sum(len(each.test) for each in toy.slices.rounds) * 8
    assert choice["n"] == tested // 2
    assert choice["moved"] == 0
    assert choice["regret_ms"] == choice["never_ms"] > 0
    assert len(found["tuned"]["draws"]["regret_ms"]) == len(found["tuned"]["draws"]["mae_ms"])


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_forecasts_the_same(name: str, model: Any, toy: Trace, tmp_path: Path) -> None:
    part = toy.to_predict(toy.slices.rounds[0].test)
    door.save(tmp_path / "kept", model)
    again = door.load(tmp_path / "kept")
    np.testing.assert_array_equal(model.predict(part), again.predict(part))
    assert again.multiply_adds() == model.multiply_adds()
    library = swiftqueue.load_model(tmp_path / "kept")
    of_library = library.predict(toy.packets)["predicted_us"].to_numpy()
    assert [library.predict(toy.packets.head(few))["predicted_us"].null_count() for few in (0, 5)] == [0, 5]
    here = slice(part.decisions.lo * HORIZON, part.decisions.hi * HORIZON)
    np.testing.assert_array_equal(of_library[here].reshape(-1, HORIZON), model.predict(part))
    if name in ("xgboost", "paper-xgboost"):  # loaded trees draw other rows when boosting goes on
        return
    tuning = toy.to_learn(toy.slices.rounds[0].finetune)
    np.testing.assert_array_equal(
        model.tuned(tuning, toy_world.TUNING).predict(part),
        again.tuned(tuning, toy_world.TUNING).predict(part),
    )


@pytest.mark.parametrize("name", ["event-stream", "mlp"])
def test_a_seed_gives_its_weights_and_another_gives_others(name: str, quick: Path, toy: Trace) -> None:
    [variant] = variants(quick, [name])
    learn, ask = toy.to_learn(toy.slices.pretrain), toy.to_predict(toy.slices.rounds[0].test)
    one, same, other = (variant.fit([learn], seed).predict(ask) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", ["event-stream-2", "mlp", "window", "bilstm"])
def test_tuning_changes_the_head_alone_and_needs_a_latency(model: Any, toy: Trace) -> None:
    part = toy.to_learn(toy.slices.rounds[0].finetune)
    before = {key: value.clone() for key, value in model.model.state_dict().items()}
    tuned: Any = model.tuned(part, toy_world.TUNING)
    for key, value in tuned.model.state_dict().items():
        assert torch.equal(value, before[key]) != key.startswith("head."), key
        assert torch.equal(model.model.state_dict()[key], before[key]), key
    unknown = part.packets.with_columns(latency_us=pl.lit(None, pl.Float32))
    silent: Any = model.tuned(replace(part, packets=unknown), toy_world.TUNING)
    for key, value in silent.model.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["event-stream", "event-stream-2"])
def test_the_event_stream_answers_as_a_live_sender_would(
    name: str, fitted: dict[str, Forecaster], toy: Trace
) -> None:
    """Events one by one through the live log and the memory of keys and values: the bulk's to 1e-5."""
    stream = fitted[name]
    assert isinstance(stream, EventStreamForecaster)
    model, live, memory = stream.model, LiveEvents(), stream.model.empty()
    events, queries = (Inputs.without(rows, []) for rows in (EVENT_INPUTS, QUERY_INPUTS))
    bulk = {q: stream.predict(TracePart("t", toy.packets, Slice(0, 80)), q) for q in (0, 1)}
    table = toy.packets.to_dicts()
    acks = sorted((p["acked_ns"], p["packet"]) for p in table if p["acked_ns"] is not None)
    queue_of = {"classic": 0, "l4s": 1}
    with torch.inference_mode():
        for packet in table[: 80 * 8]:
            now = packet["sent_ns"]
            while acks and acks[0][0] <= now:
                acked_ns, number = acks.pop(0)
                row = live.acked(number, acked_ns, table[number]["latency_us"])
                memory = extend(model, memory, torch.from_numpy(events.of(row[None])), torch.tensor([True]))
            if packet["packet"] % 8 == 0:
                for queue, expected_BH in bulk.items():
                    asked = [
                        live.query(now, p["size_bytes"], p["flow_id"], p["receiver_id"], queue, place)
                        for place, p in enumerate(table[packet["packet"] : packet["packet"] + 8])
                    ]
                    us_H = ask(model, memory, torch.from_numpy(queries.of(np.stack(asked))))
                    np.testing.assert_allclose(us_H, expected_BH[packet["packet"] // 8], rtol=1e-5)
            what = packet["size_bytes"], packet["flow_id"], packet["receiver_id"], queue_of[packet["queue"]]
            row = live.sent(packet["packet"], now, *what)
            memory = extend(model, memory, torch.from_numpy(events.of(row[None])), torch.tensor([False]))


@pytest.mark.parametrize("visibility", ["acked", "previous"])
@pytest.mark.parametrize("told", ["all", "flows", "first"])
@pytest.mark.parametrize("queue", [AS_SENT, 0, 1])
def test_a_window_says_of_candidates_what_their_queries_say(
    queue: int, told: str, visibility: str, toy: Trace
) -> None:
    """Windows in Python and events in C++ agree bit for bit, where both have an input."""
    shared = [each.name for each in QUERY_INPUTS if each.name in WINDOW_INPUTS]
    assert {"flow_age_us", "in_flight_queue", "last_latency_flow_us", "gap_us", "hole_age_us"} <= set(shared)
    part = TracePart("t", toy.packets, Slice(40, 240), visibility, told)
    asked_BHF = replayed(part, queue).x_DHF[..., [[each.name for each in INPUTS].index(n) for n in shared]]
    x_BWF = windows_of(part, 64, shared, queue)[:]
    np.testing.assert_array_equal(x_BWF[:, -HORIZON:], asked_BHF)


@pytest.mark.parametrize("told", ["all", "first"])
@pytest.mark.parametrize("queue", [AS_SENT, 1])
def test_a_tokens_inputs_of_events_are_those_of_its_own_packet(queue: int, told: str, toy: Trace) -> None:
    """Its age says whose it is: between those in flight and settled ones a window leaves packets out."""
    names = ["expected_latency_us", "last_queueing_us", "send_rate", "ack_rate_flow"]
    part = TracePart("t", toy.packets, Slice(40, 240), told=told)
    x_BWF = windows_of(part, 64, ["age_us", "size_bytes", *names], queue)[:]
    log = replay_events(toy.packets)
    sent_NM = log.x_EF[~log.ack_E][:, [[each.name for each in INPUTS].index(name) for name in names]]
    sent_ns_N = toy.packets["sent_ns"].to_numpy()
    gaps = 0
    for first, x_WF in zip(part.first_packets, x_BWF, strict=True):
        real_KF = x_WF[:-8][x_WF[:-8, 1] > 0]
        age_us_N = ((sent_ns_N[first] - sent_ns_N[:first]) / 1e3).astype(np.float32)
        assert len(np.unique(age_us_N)) == first, "two packets of one age: which is meant?"
        packet_K = first - 1 - np.searchsorted(age_us_N[::-1], real_KF[:, 0])
        np.testing.assert_array_equal(age_us_N[packet_K], real_KF[:, 0])
        np.testing.assert_array_equal(real_KF[:, 2:], sent_NM[packet_K])
        gaps += packet_K[-1] - packet_K[0] >= len(packet_K)
    assert gaps > 20, "no window leaves packets out: this test would not see another packet's inputs"


def test_every_send_is_a_target_once_an_epoch(quick: Path, toy: Trace) -> None:
    [variant] = variants(quick, ["event-stream"])
    params: Any = variant.params
    part = toy.to_learn(toy.slices.pretrain)
    lesson = _Lesson([part], _untrained([part], params), params.model_copy(update={"epochs": 9}), seed=1)
    known = int(part.packets["latency_us"].is_not_null().sum())
    for epoch in range(9):
        targets = torch.cat([batch.target_QH[batch.weight_QH > 0] for batch in lesson.batches(epoch)])
        assert known - 24 <= len(targets) <= known  # but those before the first decision or after the last
    assert sorted(lesson.phases[:8]) == list(range(8))


def multiplied(model: Callable[..., Any], *call: Any) -> int:
    """Return the multiply-adds of a call as torch counts them."""
    plain = sdpa_kernel(SDPBackend.MATH)  # torch counts the products of this one
    with FlopCounterMode(display=False) as counter, plain:
        model(*call)
    return int(counter.get_total_flops()) // 2


def test_multiply_adds_are_those_that_torch_counts(fitted: dict[str, Forecaster]) -> None:
    for name in ("event-stream", "event-stream-2"):
        stream: Any = fitted[name]
        model = stream.model
        full = model.empty()
        x_TF, ack_T = torch.rand(model.sizes.band, len(EVENT_INPUTS)), torch.zeros(1, dtype=torch.bool)
        full = extend(model, full, x_TF, ack_T.expand(len(x_TF)))
        x_HP = torch.rand(8, len(QUERY_INPUTS))
        event = multiplied(extend, model, full, x_TF[:1], ack_T)
        # Both embeddings are computed and one is taken: one of the two does not count.
        event -= model.sizes.width * len(EVENT_INPUTS)
        asked = multiplied(ask, model, full, x_HP)
        assert stream.multiply_adds() == pytest.approx(16 * event + 2 * asked, rel=0.01), name
    mlp: Any = fitted["mlp"]
    assert mlp.multiply_adds() == 2 * multiplied(mlp.model.scaled, torch.rand(1, 8, len(QUERY_INPUTS)))
    for name in ("window", "paper", "bilstm"):
        window: Any = fitted[name]
        sizes, tokens = window.model.sizes, window.tokens
        d, read = sizes.width, 8 if name != "paper" else 1
        if name == "bilstm":  # four gates each way, of the input and of the state before
            body = sizes.layers * tokens * 2 * 4 * (d // 2) * (d + d // 2)
        else:  # keys and values; then query, output, two layers, attention
            after = 2 * d * d + 2 * d * sizes.feed_forward + 2 * tokens * d
            body = sizes.layers * tokens * 2 * d * d + ((sizes.layers - 1) * tokens + read) * after
        inputs, head = tokens * len(window.model.features) * d, read * d * d + 8 * d
        assert window.multiply_adds() == 2 * (inputs + body + head), name


def strange(kind: str) -> pl.DataFrame:
    table = toy_world.bottleneck_table("t", 2.7, seed=1)
    if kind == "one flow":
        one = pl.lit(0, pl.Int32)
        table = table.with_columns(flow_id=one, receiver_id=one)
    if kind == "constant latency":
        table = table.with_columns(
            latency_us=pl.lit(20_000.0, pl.Float32), acked_ns=pl.col("sent_ns") + 20_000_000
        )
    if kind == "99 % unknown":
        known = pl.col("packet") % 100 == 0
        table = table.with_columns(latency_us=pl.when(known).then("latency_us"))
    return table


@pytest.mark.long
@pytest.mark.parametrize("kind", ["one flow", "constant latency", "99 % unknown"])
def test_strange_traces_give_defined_results(kind: str, quick: Path) -> None:
    traces = [trace(strange(kind))]
    asked = HeldOutPackets.of(traces)
    for variant in variants(quick):
        found = run(variant, 1, traces, asked, JUDGING, lambda _: None)
        json.dumps(found, allow_nan=False)
        for form in FORMS:
            assert found[form]["error"]["mae_ms"] is not None
            late = found[form]["late"]
            assert (late["average_precision"] is None) == (late["n_late"] == 0)
    if kind == "constant latency":
        assert late["n_late"] == 0


def test_no_change_is_counted_across_two_traces(quick: Path) -> None:
    """One trace's latency is 20 ms throughout, the next one's 100 ms: neither has a change."""
    low = strange("constant latency")
    high = low.with_columns(
        latency_us=pl.lit(100_000.0, pl.Float32), acked_ns=pl.col("sent_ns") + 100_000_000
    )
    traces = [trace(low, "low"), trace(high, "high")]
    (last,) = variants(quick, ["last-sender"])
    found = run(last, 1, traces, HeldOutPackets.of(traces), JUDGING, lambda _: None)
    assert set(found["tuned"]["f1"].values()) == {None}


def test_without_a_latency_to_learn_from_there_is_one_line(quick: Path, toy: Trace) -> None:
    part = toy.to_learn(toy.slices.pretrain)
    silent = replace(part, packets=part.packets.with_columns(latency_us=pl.lit(None, pl.Float32)))
    for variant in variants(quick):
        with pytest.raises(ValueError, match=r"latenc") as caught:
            variant.fit([silent], seed=1)
        assert "\n" not in str(caught.value), variant.name


def test_a_choice_is_made_within_the_training_slice(toy: Trace) -> None:
    [within] = within_training([toy])
    end = toy.slices.pretrain.hi
    assert within.packets.height == end * 8
    [only] = within.slices.rounds
    assert within.slices.pretrain.hi == only.finetune.hi == only.test.lo < only.test.hi == end


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("mlp", {"name": None}, "section `mlp` must have a `name`"),
        ("mlp", {"name": "mlq"}, "section `mlp`: there is no forecaster 'mlq'; did you mean mlp?"),
        ("mlp", {"layers": 0}, "section `mlp`: mlp.layers is 0; it must be "),
        ("mlp", {"left_out": ["gap"]}, "it names 'gap', which is not an input; "),
        ("mlp", {"left_out": ["size_bytes"]}, "'size_bytes', which every network needs"),
        ("mlp", {"anchor": "gap_us"}, "anchor is 'gap_us'; it must be one of "),
        ("mlp", {"left_out": ["last_latency_us"]}, "'last_latency_us', which the anchor "),
        ("mlp", {"depth": 3}, "section `mlp`: unknown parameter mlp.depth"),
        ("last-flow", {"input": "gap_us"}, "repeated.input is 'gap_us'; it must be one of"),
        ("window", {"inputs": ["foo"]}, "inputs names 'foo', which no window has; "),
        ("window", {"inputs": ["size_bytes", "size_bytes"]}, "inputs names 'size_bytes' twice"),
        ("window", {"inputs": ["size_bytes"]}, "it must be a text or null, one of its inputs"),
        ("window-queueing", {"more_inputs": ["foo"]}, "more_inputs names 'foo', which no query adds; "),
        ("paper-xgboost", {"inputs": ["foo"]}, "inputs names 'foo', which no window has; "),
    ],
)
def test_a_section_that_cannot_be_is_one_line_before_anything_is_trained(
    name: str, change: dict[str, Any], line: str, quick: Path, tmp_path: Path
) -> None:
    path = tmp_path / "forecasters.yaml"
    path.write_text(yaml.safe_dump({name: yaml.safe_load(quick.read_text())[name] | change}))
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        variants(path)
    assert "\n" not in str(caught.value)


def test_an_unknown_section_is_one_line(quick: Path) -> None:
    with pytest.raises(ValueError, match="section `mpl` is missing; did you mean mlp"):
        variants(quick, ["mpl"])


@pytest.mark.parametrize("name", ["last-flow", "paper-xgboost", "window"])
def test_what_was_made_for_other_inputs_is_refused(
    name: str, fitted: dict[str, Forecaster], tmp_path: Path
) -> None:
    door.save(tmp_path / "kept", fitted[name])
    path = tmp_path / "kept/forecaster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_hash": "0"}))
    with pytest.raises(ValueError, match="made for inputs 0, but this code computes"):
        door.load(tmp_path / "kept")


def test_a_window_is_made_for_the_definition_of_events_where_it_has_inputs_of_theirs(
    fitted: dict[str, Forecaster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("window", "window-queueing"):
        door.save(tmp_path / name, fitted[name])
    said = json.loads((tmp_path / "window/forecaster.json").read_text())
    assert said["schema_hash"] == schema_hash()  # as before there were inputs of events
    monkeypatch.setattr("swiftqueue.models.window.windows.event_schema_hash", lambda: "0")
    door.load(tmp_path / "window")
    with pytest.raises(ValueError, match="made for inputs"):
        door.load(tmp_path / "window-queueing")


def test_what_was_saved_is_refused_when_it_is_not_whole(
    fitted: dict[str, Forecaster], tmp_path: Path
) -> None:
    model = fitted["event-stream"]
    folder = tmp_path / "kept"
    door.save(folder, model)
    path = folder / "forecaster.json"
    good = json.loads(path.read_text())
    for change, line in (
        ({"format": "other/1"}, "format 'other/1' is not"),
        ({"name": "gone"}, "there is no forecaster 'gone'"),
        ({"files": {**good["files"], "model.safetensors": "0"}}, "has changed since it was written; fit"),
        ({"files": 3}, "malformed"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(ValueError, match=line):
            door.load(folder)
    path.write_text(json.dumps(good))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"model\.safetensors has changed since it was written; fit"):
        door.load(folder)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="the folder is incomplete"):
        door.load(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="the folder is incomplete"):
        door.load(folder)


def test_the_smoothed_latency_is_rfc_6298s(fitted: dict[str, Forecaster], toy: Trace) -> None:
    """Read a second time, from the table: SRTT <- 7/8 SRTT + 1/8 R of the flow's acknowledged latencies."""
    part = TracePart("t", toy.packets, Slice(0, 300))
    known = toy.packets.drop_nulls("latency_us").sort("acked_ns", maintain_order=True)
    srtt: dict[int, float] = {}
    acks = iter([*known.select("acked_ns", "flow_id", "latency_us").rows(), (2**63 - 1, 0, 0.0)])
    acked_ns, flow, latency_us = next(acks)
    smoothed_N = []
    for k, row in enumerate(toy.packets.head(300 * 8).iter_rows(named=True)):
        if k % 8 == 0:
            while acked_ns <= row["sent_ns"]:
                srtt[flow] = 7 / 8 * srtt[flow] + latency_us / 8 if flow in srtt else latency_us
                acked_ns, flow, latency_us = next(acks)
        smoothed_N.append(srtt.get(row["flow_id"], np.nan))
    known_N = np.isfinite(smoothed_N)  # where the flow has none yet, the sender's stand in
    assert known_N.sum() > 2000
    repeated_N = fitted["ewma-flow"].predict(part).ravel()
    np.testing.assert_allclose(repeated_N[known_N], np.array(smoothed_N)[known_N], rtol=1e-4)


def test_under_previous_every_earlier_latency_is_known_in_windows_and_queries_alike(
    fitted: dict[str, Forecaster], toy: Trace
) -> None:
    before = TracePart("t", toy.packets, Slice(100, 200), "previous")
    acked = TracePart("t", toy.packets, Slice(100, 200))
    name = "last_latency_us"
    previous_BW1, acked_BW1 = (windows_of(each, 64, [name])[:] for each in (before, acked))
    assert (previous_BW1 != acked_BW1).any()
    last_B = toy.packets["latency_us"].fill_null(strategy="forward").to_numpy()[before.first_packets - 1]
    np.testing.assert_allclose(previous_BW1[:, -8, 0], last_B)
    np.testing.assert_allclose(fitted["last-sender"].predict(before)[:, 0], last_B)
    assert [part.visibility for part in before.held_out()] == ["previous"] * 2
