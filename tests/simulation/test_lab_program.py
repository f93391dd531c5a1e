"""The laboratory's program: what it writes agrees with its own capture, and what it refuses.

Runs are short and seeded, so every figure here is the same each time.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_world
from cpp_suite import passed
from waiting import wait_until

from swiftqueue.feature_store.events.virtual_queue import Rule, replay_virtual_queue
from swiftqueue.feature_store.packets.schema import read_packets, traces_in
from swiftqueue.laboratory.learning import packet_table
from swiftqueue.laboratory.learning.packet_table import packets_of, write_packets
from swiftqueue.laboratory.runs.execution import check
from swiftqueue.models.forecasters.traces import Trace, decision_times
from swiftqueue.models.training.protocol import EvaluationProtocol, divide
from swiftqueue.pipelines.simulators import build_simulator

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

Run = dict[str, Any]
Result = dict[str, Any]


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator(program="lab")


def group(flows: int, tcp: str, ecn: str, **changes: Any) -> Run:
    """A group of flows to R1 that offers 5 Mbit/s a flow in messages."""
    traffic = {"kind": "messages", "rate_bps": 5e6, "sizes": "web_search"}
    base = {"flows": flows, "tcp": tcp, "ecn": ecn, "receiver": "R1", "start_s": [0, 0.5]}
    return base | {"dupack_threshold": 3, "traffic": traffic} | changes


def figure8(**changes: Any) -> Run:
    """The paper's figure 8, three seconds of it, in the profile `uncoupled`."""
    own = [group(6, "dctcp", "ect1", dupack_threshold=12), group(4, "cubic", "ect0")]
    return {
        "format": 1,
        "name": "figure8",
        "seed": 1,
        "seconds": 3,
        "warmup_s": 1,
        "profile": "uncoupled",
        "bottlenecks": [{"rate_bps": 100e6, "delay_ms": 20, "buffer_bytes": 1_000_000}],
        "receivers": [{"name": "R1", "router": 1, "delay_ms": 0.1}],
        "senders": [
            {"name": "S1", "router": 0, "delay_ms": 0.1, "groups": own},
            {"name": "cross", "router": 0, "delay_ms": 0.1, "groups": [group(10, "dctcp", "ect1")]},
        ],
        "control": {"kind": "default"},
        "moved_ecn": "not_ect",
        "acks": "cumulative",
        "explore": {"share": 0, "burst_packets": 8, "seed": 1},
        "finetune": None,
        "outputs": [],
    } | changes


def third(**changes: Any) -> Run:
    """A third of it, where the load does not matter."""
    run = figure8(bottlenecks=[{"rate_bps": 33e6, "delay_ms": 20, "buffer_bytes": 330_000}])
    for groups in (sender["groups"] for sender in run["senders"]):
        for flows in groups:
            flows["flows"] = (flows["flows"] + 2) // 3
    return run | changes


def model(artifact: Path, **changes: Any) -> Run:
    """Control by a model that changes queues on any difference it predicts."""
    base = {"kind": "model", "artifact": str(artifact), "version": 1, "inference_us": 200}
    restraint = {"margin_us": 0, "margin_share": 0, "max_moved_unacked": 1_000_000}
    return base | {"until_decided": "previous"} | restraint | changes


def simulate(program: Path, run: Run, out: Path) -> Result:
    """Run it and return its summary; every packet of S1 must be accounted for."""
    file = out.with_suffix(".json")
    file.write_text(json.dumps(run))
    done = subprocess.run(
        [program, f"--run={file}", f"--out={out}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "progress 0"
    assert not out.with_name(out.name + ".partial").exists()
    summary: Result = json.loads((out / "summary.json").read_text())
    assert summary["run"] == run
    return summary


def refused(program: Path, run: Run | str, out: Path) -> str:
    """Run what cannot be run: one line, and no result."""
    file = out.with_suffix(".json")
    file.write_text(run if isinstance(run, str) else json.dumps(run))
    done = subprocess.run(
        [program, f"--run={file}", f"--out={out}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert not out.exists()
    assert not out.with_name(out.name + ".partial").exists()
    (line,) = done.stderr.strip().split("\n")
    return line


def truth_of(out: Path) -> np.ndarray[Any, Any]:
    """The truth of S1's packets; arrived, dropped or still under way."""
    rows = np.load(out / "truth.npy")
    arrived = ~np.isnan(rows["one_way_us"])
    assert not (arrived & (rows["dropped"] == 1)).any()
    under_way = ~arrived & (rows["dropped"] == 0)
    assert (rows["sent_ns"][-1] - rows["sent_ns"][under_way] < 1e9).all()
    assert (np.diff(rows["sent_ns"]) >= 0).all()
    assert (rows["packet"] == np.arange(len(rows))).all()
    assert (np.isnan(rows["queueing_us"]) == ~arrived).all()
    return rows


def test_the_capture_and_the_simulator_agree(program: Path, tmp_path: Path) -> None:
    """Every column that a sender can see, packet by packet, amid moves, drops and retransmissions."""
    from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
    from swiftqueue.feature_store.packets.schema import scan_packets

    run = figure8(
        control={"kind": "random", "share": 0.3, "burst_packets": 1, "seed": 1},
        bottlenecks=[{"rate_bps": 40e6, "delay_ms": 10, "buffer_bytes": 60_000}],
        outputs=["pcap", "truth"],
        warmup_s=0,
    )
    summary = simulate(program, run, tmp_path / "out")
    rows = truth_of(tmp_path / "out")
    extract_trace(ExtractJob(tmp_path / "out" / "s1.pcap", "lab"), tmp_path / "packets")
    table = scan_packets(tmp_path / "packets", "lab").collect()

    # the table leaves out connections of fewer than 8 packets if they carry next to nothing
    assert len(table) == len(rows)
    assert (table["sent_ns"].to_numpy() == rows["sent_ns"]).all()
    assert (table["size_bytes"].to_numpy() == rows["size_bytes"]).all()
    assert ((table["queue"] == "l4s").to_numpy() == (rows["queue"] == 1)).all()
    assert (table["retransmitted"].to_numpy() == (rows["retransmitted"] == 1)).all()
    latency_us = table["latency_us"].fill_null(float("nan")).to_numpy()
    assert np.array_equal(np.isnan(latency_us), np.isnan(rows["latency_us"]))
    known = ~np.isnan(latency_us)
    assert known.mean() > 0.8
    assert np.abs(latency_us[known] - rows["latency_us"][known]).max() < 0.01  # float32 of 100 ms
    # the way back hardly waits: a latency in order is the one-way delay and 10.2 ms
    assert (rows["latency_us"][known] >= rows["one_way_us"][known] + 10_200).all()

    # the run had what could go wrong
    assert rows["dropped"].sum() > 20
    assert rows["retransmitted"].sum() > 20
    assert rows["reordered"].sum() > 20
    assert rows["marked"].sum() > 20
    assert ((rows["queue"] == 0) & (rows["default_queue"] == 1)).sum() > 100
    senders = summary["senders"].values()
    lost = sum(c["dropped"] for s in senders for c in s.values())
    (bottleneck,) = summary["bottlenecks"]
    queues = (bottleneck["l4s"], bottleneck["classic"])
    assert lost == sum(q["dropped"] + q["refused"] for q in queues)
    assert lost == sum(bottleneck["drops"].values())
    for queue in queues:
        waiting_bytes = queue["enqueued_bytes"] - queue["dequeued_bytes"] - queue["dropped_bytes"]
        assert 0 <= waiting_bytes <= 60_000


def test_selective_acks_tell_of_a_packet_that_overtook(program: Path, tmp_path: Path) -> None:
    """A cumulative ACK hides what overtaking gained; a SACK block says it as the packet arrives."""
    moving = {"kind": "random", "share": 0.3, "burst_packets": 8, "seed": 1}
    waits = {}
    for acks in ("cumulative", "selective"):
        run = third(control=moving, acks=acks, moved_ecn="ect0", outputs=["truth"], seconds=4)
        simulate(program, run, tmp_path / acks)
        rows = truth_of(tmp_path / acks)
        table = packets_of(tmp_path / acks, "t")
        assert (table["queue"] == "l4s").to_list() == (rows["queue"] == 1).tolist()
        assert set(table["ecn"]) == {1, 2}
        known = table["latency_us"].is_not_null().to_numpy()
        assert known.mean() > 0.8
        assert not (known & (rows["retransmitted"] == 1)).any()
        assert (rows["acked_ns"][known] > rows["sent_ns"][known]).all()
        latency_us = table["latency_us"].to_numpy()
        # an ACK for each packet, and a way back that hardly waits
        beyond_us = (latency_us - rows["one_way_us"])[known & ~np.isnan(rows["one_way_us"])] - 20_200
        moved = (rows["default_queue"] == 1) & (rows["queue"] == 0) & known
        waits[acks] = np.nanmean(latency_us[moved] - rows["one_way_us"][moved]) - 20_200
        if acks == "cumulative":
            assert np.array_equal(latency_us[known], rows["latency_us"][known])
        else:
            assert np.quantile(np.abs(beyond_us), 0.99) < 50
    assert waits["cumulative"] > waits["selective"] + 1_000


@pytest.mark.parametrize("lasting", [1, 2])
def test_flows_apart_are_traces_of_their_own(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: int
) -> None:
    """Each L4S flow that is never silent for long, with the packets that the sender of all has of it."""
    explored = {"share": 0.3, "burst_packets": 8, "seed": 1}
    run = third(explore=explored, moved_ecn="ect0", outputs=["truth"], seconds=4)
    simulate(program, run, tmp_path / "run")
    whole = packets_of(tmp_path / "run", "t")
    flows = [one for _, one in whole.group_by("flow_id", maintain_order=True) if (one["ecn"] == 1).any()]
    ends = whole["sent_ns"][0], whole["sent_ns"][-1]
    pauses_ns = [max(np.diff([ends[0], *one["sent_ns"], ends[1]])) for one in flows]
    longest_ns = sorted(pauses_ns)[lasting - 1]
    monkeypatch.setattr(packet_table, "LONGEST_PAUSE_S", 1.001 * longest_ns / 1e9)
    write_packets(tmp_path / "run", "t", tmp_path / "packets", flows_apart=True)
    kept = [one for one, pause_ns in zip(flows, pauses_ns, strict=True) if pause_ns <= longest_ns]
    assert len(kept) == lasting
    assert traces_in(tmp_path / "packets") == [f"t-flow{number}" for number in range(lasting)]
    numbered = ["trace", "packet", "flow_id", "receiver_id"]
    for number, one in enumerate(kept):
        alone = read_packets(tmp_path / "packets", f"t-flow{number}")
        assert alone["packet"].to_list() == list(range(len(one)))
        assert set(alone["flow_id"]) == set(alone["receiver_id"]) == {0}
        assert {"classic", "l4s"} == set(alone["queue"])  # it explores
        assert alone.drop(numbered).equals(one.drop(numbered))


def test_the_same_run_gives_the_same_bytes(
    program: Path, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    run = third(
        seconds=1.2,
        control=model(make_artifact(1)),
        explore={"share": 0.1, "burst_packets": 8, "seed": 4},
        outputs=["pcap", "truth"],
    )
    for name in ("first", "second"):
        simulate(program, run, tmp_path / name)
    simulate(program, run | {"seed": 2}, tmp_path / "other")
    files = sorted(p.name for p in (tmp_path / "first").iterdir())
    assert files == ["cost.json", "s1.pcap", "summary.json", "trace.json", "truth.npy"]
    for file in set(files) - {"cost.json"}:
        first = (tmp_path / "first" / file).read_bytes()
        assert first == (tmp_path / "second" / file).read_bytes(), file
        assert first != (tmp_path / "other" / file).read_bytes(), file
    cost = json.loads((tmp_path / "first" / "cost.json").read_text())
    assert set(cost) == {"cpu_s", "wall_s", "peak_memory_bytes", "events", "engine_s", "engine_calls"}


@pytest.mark.long
def test_controls_do_what_they_say(program: Path, tmp_path: Path) -> None:
    def with_control(
        name: str, control: Run, seconds: float = 1.5, **changes: Any
    ) -> tuple[Result, np.ndarray[Any, Any]]:
        run = figure8(control=control, outputs=["truth"], seconds=seconds, **changes)
        return simulate(program, run, tmp_path / name), truth_of(tmp_path / name)

    def p99(summary: Result) -> float:
        return float(summary["senders"]["S1"]["l4s"]["queueing_us"]["p99"])

    default, rows = with_control("default", {"kind": "default"}, 3)
    assert default["moved"]["moved"] == 0
    assert (rows["queue"] == rows["default_queue"]).all()

    no_l4s, rows = with_control("no_l4s", {"kind": "no_l4s"})
    assert not rows["queue"].any()
    assert no_l4s["bottlenecks"][0]["l4s"]["enqueued"] == 0
    assert no_l4s["senders"]["S1"]["l4s"]["flows"] == 6
    assert no_l4s["moved"]["share"] is None

    third = {"kind": "random", "share": 0.3, "burst_packets": 8, "seed": 5}
    random, rows = with_control("random", third)
    assert random["moved"]["share"] == pytest.approx(0.3, abs=0.05)
    explored, same = with_control(
        "explored", {"kind": "default"}, explore={"share": 0.3, "burst_packets": 8, "seed": 5}
    )
    for moved in (rows, same):  # one fate a burst, but for its classic packets
        whole = moved[: len(moved) // 8 * 8]
        fates = np.where(whole["default_queue"] == 1, whole["queue"] == 0, -1).reshape(-1, 8)
        assert all(len(set(burst) - {-1}) <= 1 for burst in fates)
    assert explored["moved"]["share"] == pytest.approx(0.3, abs=0.05)

    oracle, _ = with_control("oracle", {"kind": "oracle", "margin_us": 1000, "order": "any", "rate_us": 0}, 3)
    assert 0.1 < oracle["moved"]["share"] < 0.7
    assert p99(oracle) < 0.9 * p99(default)
    wise, _ = with_control("wise", {"kind": "oracle", "margin_us": 1000, "order": "any", "rate_us": 2e4}, 1.5)
    assert wise["moved"]["moved"] > 0
    kept, _ = with_control("kept", {"kind": "oracle", "margin_us": 1000, "order": "kept", "rate_us": 0}, 3)
    assert kept["moved"]["moved"] > 0
    reordered = [s["senders"]["S1"]["l4s"]["reordered"] for s in (default, kept, oracle)]
    assert reordered[0] == 0
    assert reordered[1] < 0.3 * reordered[2]

    last, _ = with_control("last", {"kind": "last_latency", "threshold_us": 15_000, "stale_us": 1e5})
    assert last["moved"]["moved"] > 0
    never, _ = with_control("never", {"kind": "last_latency", "threshold_us": 1e9, "stale_us": 1e5})
    assert never["moved"]["moved"] == 0


def test_the_oracle_predicts_what_a_dual_queue_does() -> None:
    """The C++ suite: how long a packet waits in a real DualPI2 while more arrives in the other queue."""
    assert passed("oracle-wait-test") > 100


def test_a_threshold_on_the_last_latency_packet_by_packet(program: Path, tmp_path: Path) -> None:
    """Its decisions again, from what S1 had seen by then: not from latencies older than `stale_us`."""
    threshold_us, stale_us = 8_000.0, 2_000.0
    control = {"kind": "last_latency", "threshold_us": threshold_us, "stale_us": stale_us}
    simulate(program, figure8(control=control, outputs=["truth"], seconds=2), tmp_path / "out")
    rows = truth_of(tmp_path / "out")
    known = rows[(rows["acked_ns"] >= 0) & ~np.isnan(rows["latency_us"])]
    known = known[np.argsort(known["acked_ns"], kind="stable")]
    least_us: dict[int, float] = {}
    last: dict[int, Any] = {}
    seen = moved = stale = 0
    for packet in rows[rows["default_queue"] == 1]:
        while seen < len(known) and known[seen]["acked_ns"] <= packet["sent_ns"]:
            told = known[seen]
            flow = int(told["flow"])
            least_us[flow] = min(least_us.get(flow, np.inf), told["latency_us"])
            if told["queue"] == 1:
                last[flow] = told
            seen += 1
        flow = int(packet["flow"])
        high = flow in last and last[flow]["latency_us"] - least_us[flow] > threshold_us
        fresh = high and last[flow]["acked_ns"] >= packet["sent_ns"] - stale_us * 1e3
        assert (packet["queue"] == 0) == fresh, packet
        moved += fresh
        stale += high and not fresh
    assert moved > 100
    assert stale > 100


@pytest.mark.long
def test_the_virtual_queue_decides_by_what_offline_code_makes_of_its_log(
    program: Path, tmp_path: Path
) -> None:
    """Its decisions again, packet by packet, by the rows that Python makes of S1's log."""
    margin_us = 1_000.0
    control = {"kind": "virtual_queue", "margin_us": margin_us}
    run = figure8(control=control, outputs=["truth"], seconds=4, acks="selective", moved_ecn="ect0")
    simulate(program, run, tmp_path / "out")
    rows, packets = truth_of(tmp_path / "out"), packets_of(tmp_path / "out", "t")
    every = np.arange(packets.height - 7)
    online = (Rule.online(), Rule.online())
    classic_us, l4s_us = (
        np.nan_to_num(replay_virtual_queue(packets, every, queue=queue).forecast_us(online)[:, 0])
        for queue in (0, 1)
    )
    asked = rows["default_queue"][every] == 1
    moved = rows["queue"][every][asked] == 0
    expected = (l4s_us - classic_us > margin_us)[asked]
    assert 0.1 < moved.mean() < 0.9
    # A packet is decided when it leaves the queue disc, up to 12 us before the time in the log.
    assert (moved == expected).mean() > 0.995
    never = simulate(
        program, run | {"control": {"kind": "virtual_queue", "margin_us": 1e9}}, tmp_path / "never"
    )
    assert never["moved"]["moved"] == 0


@pytest.mark.long
def test_the_virtual_queue_on_the_ladder_decides_every_batch(program: Path, tmp_path: Path) -> None:
    run = figure8(seconds=4, outputs=["waits"], moved_ecn="ect0", acks="selective")
    by = {"chance": {"kind": "chance", "share": 0.5, "seed": 1}, "rule": {"kind": "virtual_queue"}}
    found = {
        name: simulate(program, run | {"control": batched(what)}, tmp_path / name)
        for name, what in by.items()
    }
    counts = found["rule"]["decisions"]
    assert counts["decided"] == counts["batches"] > 500
    assert 0.1 < found["rule"]["moved"]["share"] < 0.95
    right = {name: one["choice"]["right"] / one["choice"]["apart"] for name, one in found.items()}
    assert right["rule"] > right["chance"]


def test_a_decision_cannot_act_before_it_exists(
    program: Path, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    artifact = make_artifact(2)

    def moved(name: str, **changes: Any) -> tuple[np.ndarray[Any, Any], Result]:
        run = third(control=model(artifact, **changes), outputs=["truth"], seconds=2)
        decisions: Result = simulate(program, run, tmp_path / name)["decisions"]
        rows = truth_of(tmp_path / name)
        assert sum(decisions["versions"].values()) == -(-len(rows) // 8)  # each batch is asked about
        assert decisions["batches"] == decisions["decided"] + decisions["late"]
        return (rows["default_queue"] == 1) & (rows["queue"] == 0), decisions

    at_once, decisions = moved("at-once", inference_us=0, until_decided="default")
    assert decisions["decided"] == -(-len(at_once) // 8)
    assert at_once[::8].any()  # the packets that were asked at

    delayed, decisions = moved("delayed", until_decided="default")
    assert not delayed[::8].any()
    assert delayed.any()
    assert decisions["decided"] > 0

    for_ever, decisions = moved("for-ever", inference_us=1e6, until_decided="default")
    assert not for_ever.any()
    assert decisions["decided"] == 0

    held, decisions = moved("held", until_decided="previous")
    assert decisions["late"] == 0
    assert held[::8].any()


# The other features in microseconds are times since something was sent.
STILL = ("latency", "queueing")  # in names of what an ACK has fixed
PACKET_US = 12.1  # of 1,502 bytes on S1's link of 1 Gbit/s


def event_artifact(folder: Path, quantiles: Sequence[float] = ()) -> Path:
    """An event stream that forecasts its anchor, scaled to a toy trace; all of its quantiles are served."""
    import torch

    table = toy_world.bottleneck_table("t", 1.2, seed=3, swing_ms=40, episodes=True)
    trace = Trace("t", table, divide(decision_times(table), EvaluationProtocol("toy", 1, 0.1, 0.1), "t"))
    sizes = {"width": 64, "heads": 4, "feed_forward": 128, "anchor": "expected_latency_us"}
    made = toy_world.untrained([trace], **sizes, quantiles=list(quantiles))
    with torch.no_grad():
        made.model.head[2].weight.zero_()
        if quantiles:
            made.model.head[2].bias += torch.linspace(-0.2, 0.4, len(quantiles))
    folder.mkdir()
    made.export(folder, "all" if quantiles else None)
    return folder


def test_a_question_holds_what_was_known_when_it_was_asked(program: Path, tmp_path: Path) -> None:
    """The simulator's rows, made again by the offline code from the log cut off at the decision.

    The log's times are those at which transmission began, up to a packet after the decision about it.
    """
    from swiftqueue.feature_store.events.definition import EVENTS
    from swiftqueue.pipelines.live.encoding import event_windows

    run = figure8(
        control=model(event_artifact(tmp_path / "events")),
        acks="selective",
        moved_ecn="ect0",
        seconds=4,
        bottlenecks=[{"rate_bps": 40e6, "delay_ms": 10, "buffer_bytes": 60_000}],
        outputs=["truth", "questions"],
    )
    simulate(program, run, tmp_path / "out")
    questions = np.load(tmp_path / "out" / "questions.npy")
    log = packets_of(tmp_path / "out", "t")
    assert len(questions) == -(-len(log) // 64)  # every eighth batch
    assert (questions["first_packet"] == 64 * np.arange(len(questions))).all()
    tokens, both = questions["x_BWF"].shape[2], 0
    names = [f.name for f in EVENTS.features]
    still = [any(word in name for word in STILL) for name in names]
    timed = np.array([f.unit == "us" for f in EVENTS.features]) & ~np.array(still)
    rates = np.array([name.startswith(("send_rate", "ack_rate")) for name in names])  # of the last 20 ms
    exact = ~timed & ~rates
    latency = names.index("latency_us")
    some = questions[::5]
    for question in some:
        sent = log.head(int(question["first_packet"]))
        known = pl.col("acked_ns") <= int(question["asked_ns"])
        seen = sent.with_columns(
            acked_ns=pl.when(known).then("acked_ns"), latency_us=pl.when(known).then("latency_us")
        )
        for queues, x_WF in zip((np.zeros(8), question["queue"]), question["x_BWF"], strict=True):
            table = pl.concat([seen, candidates(question, queues, log.schema)])
            *_, x_BWF = event_windows(table, tokens)
            assert x_BWF[-1][:, exact].tobytes() == x_WF[:, exact].tobytes(), question["first_packet"]
            np.testing.assert_allclose(x_BWF[-1][:, rates], x_WF[:, rates], rtol=2e-3)
            np.testing.assert_allclose(x_BWF[-1][:, timed], x_WF[:, timed], rtol=2e-7, atol=PACKET_US)
            if question["windows"] == 1:
                break
        both += question["windows"] == 2
    assert both > 0.5 * len(some)
    late_half_BWF = questions["x_BWF"][len(questions) // 2 :, 0]
    assert (late_half_BWF[..., latency] > 0).any(axis=1).all()  # ACKs had come

    line = refused(program, figure8(outputs=["questions"]), tmp_path / "no-model")
    assert line.endswith("finetune and questions need control model")


def candidates(question: np.void, queues: Any, schema: pl.Schema) -> pl.DataFrame:
    """The packets that were asked about as rows of a packet table."""
    rows = {
        "trace": ["t"] * 8,
        "packet": question["first_packet"] + np.arange(8),
        "sent_ns": [question["asked_ns"]] * 8,
        "flow_id": question["flow"],
        "receiver_id": question["receiver"],
        "size_bytes": question["size_bytes"],
        "queue": [("classic", "l4s")[int(queue)] for queue in queues],
        "ecn": [2] * 8,
        "retransmitted": [False] * 8,
        "lost": [False] * 8,
    }
    columns = {name: rows.get(name, [None] * 8) for name in schema}
    return pl.DataFrame(columns).select(pl.col(name).cast(kind) for name, kind in schema.items())


def test_heads_are_swapped_while_the_run_goes_on(
    program: Path, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    first, second = make_artifact(3), make_artifact(3, head=1)
    script = tmp_path / "tune.py"
    script.write_text(
        "import json, os, sys\n"
        "given = dict(zip(sys.argv[2::2], sys.argv[3::2]))\n"
        "given['bytes'] = os.path.getsize(given['--run'] + '/truth.npy')\n"
        "given['described'] = os.path.exists(given['--run'] + '/trace.json')\n"
        f"open({str(tmp_path / 'asked.jsonl')!r}, 'a').write(json.dumps(given) + chr(10))\n"
        "print('some words'); print(sys.argv[1])\n"
    )
    tuning = {"every_s": 1, "span_s": 0.5, "apply_after_s": 0.25}
    run = third(
        control=model(first),
        seconds=2.5,
        finetune=tuning | {"command": [sys.executable, str(script), str(second)]},
    )
    summary = simulate(program, run, tmp_path / "out")
    assert summary["finetune"] == [
        {"at_s": 1, "artifact": str(second), "version": 2},
        {"at_s": 2, "artifact": str(second), "version": 3},
    ]
    versions = summary["decisions"]["versions"]
    assert set(versions) == {"1", "2", "3"}
    assert min(versions.values()) > 10
    asked = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    assert [a["--from-ns"] for a in asked] == ["500000000", "1500000000"]
    assert [a["--to-ns"] for a in asked] == ["1000000000", "2000000000"]
    assert [a["--artifact"] for a in asked] == [str(first), str(second)]
    assert [a["--round"] for a in asked] == ["1", "2"]
    assert 15_000 < asked[0]["bytes"] < asked[1]["bytes"]
    assert asked[0]["described"]
    assert not (tmp_path / "out" / "truth.npy").exists()  # not asked for
    assert [a["--output"] for a in asked] == [f"{tmp_path}/out.partial/finetune/round-{k}" for k in (1, 2)]
    assert (tmp_path / "out" / "finetune" / "round-2").is_dir()

    run["finetune"]["command"][-1] = str(make_artifact(4))  # another encoder
    assert "more than its head" in refused(program, run, tmp_path / "encoder")
    run["finetune"]["command"] = ["false"]
    assert refused(program, run, tmp_path / "failed") == "finetune: the command false failed"


def test_a_killed_run_takes_the_command_with_it(
    program: Path, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    script = "import sys, time; print('begun', file=sys.stderr); time.sleep(20); sys.exit('it lived on')"
    tuning = {"every_s": 1, "span_s": 0.5, "apply_after_s": 0.25, "command": [sys.executable, "-c", script]}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(third(control=model(make_artifact(3)), finetune=tuning)))
    command = [program, f"--run={file}", f"--out={tmp_path / 'out'}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert run.stderr.readline() == "begun\n"
        run.kill()
        assert run.stderr.read() == ""  # to its end: both have closed it


def test_every_kind_of_traffic_over_two_bottlenecks(program: Path, tmp_path: Path) -> None:
    """Each kind, each congestion control, joining and leaving at every router."""
    uniform = [[100, 0], [3000, 1]]
    replay = {"kind": "replay", "gaps_us": uniform, "bytes": uniform, "durations_s": [[1, 0], [2, 1]]}
    kinds = {
        "messages": group(2, "dctcp", "ect1", dupack_threshold="ncr"),
        "hadoop": group(
            2, "cubic", "not_ect", traffic={"kind": "messages", "rate_bps": 2e6, "sizes": "hadoop"}
        ),
        "greedy": group(1, "prague", "ect1", traffic={"kind": "greedy"}),
        "video": group(1, "udp", "ect1", traffic={"kind": "video", "rate_bps": 3e6, "frames_per_s": 60}),
        "cbr": group(1, "udp", "not_ect", traffic={"kind": "cbr", "rate_bps": 1e6, "packet_bytes": 500}),
        "replay": group(2, "bbr", "ect1", traffic=replay, receiver="R0"),
        "cubic": group(1, "cubic", "ect1", traffic={"kind": "greedy"}, receiver="R0"),
    }
    senders = [
        {"name": name, "router": 1 if name == "cbr" else 0, "delay_ms": 0.5, "groups": [flows]}
        for name, flows in kinds.items()
    ]
    run = figure8(
        senders=senders,
        seconds=4,
        profile="rfc9332",
        control={"kind": "oracle", "margin_us": 0, "order": "any", "rate_us": 20_000},
        receivers=[
            {"name": "R0", "router": 1, "delay_ms": 0.1},
            {"name": "R1", "router": 2, "delay_ms": 3},
        ],
        bottlenecks=[
            {"rate_bps": 40e6, "delay_ms": 5, "buffer_bytes": 100_000},
            {"rate_bps": 20e6, "delay_ms": 5, "buffer_bytes": 100_000},
        ],
    )
    summary = simulate(program, run, tmp_path / "out")
    assert len(summary["disc"]) == len(summary["bottlenecks"]) == 2
    for name in kinds:
        of_class = "classic" if name in ("hadoop", "cbr") else "l4s"
        sender = summary["senders"][name]
        assert sender[of_class]["goodput_bps"] > 2e5, name
        assert sender["classic" if of_class == "l4s" else "l4s"]["packets"] == 0, name
    senders_l4s = {name: summary["senders"][name]["l4s"] for name in kinds}
    assert senders_l4s["video"]["goodput_bps"] == pytest.approx(3e6, rel=0.2)
    assert senders_l4s["video"]["latency_us"]["count"] == 0  # nothing acknowledges UDP
    # one-way: propagation of what lies on the way
    least_us = {name: senders_l4s[name]["one_way_us"]["cdf"][0] for name in ("greedy", "cubic")}
    assert 13_500 < least_us["greedy"] < 15_500
    assert 5_600 < least_us["cubic"] < 6_600


def change(path: str, value: Any) -> Callable[[Run], None]:
    """Set (or, with `...`, remove) what a path like `senders.0.name` leads to."""

    def apply(run: Run) -> None:
        *way, last = path.split(".")
        at: Any = run
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        if value is ...:
            del at[last]
        else:
            at[int(last) if last.isdigit() else last] = value

    return apply


MODEL = {"inference_us": 200, "until_decided": "default", "margin_us": 1000, "margin_share": 0.1}
ABSENT = {"kind": "model", "artifact": "/nowhere/artifact", "version": 1, "max_moved_unacked": 64} | MODEL
TUNING = {"every_s": 1, "span_s": 1, "apply_after_s": 0, "command": ["true"]}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("seed", ..., "run file: key 'seed' is missing"),
        ("format", 2, "run file: its format is not 1"),
        ("seconds", "long", "run file is not a number"),
        ("bottlenecks", [], "run file: a receiver's router is beyond the last"),
        ("receivers.0.router", 2, "run file: a receiver's router is beyond the last"),
        ("senders", [], "run file: there is no sender"),
        ("senders.0.router", 1, "run file: a sender's router is beyond the last bottleneck"),
        ("senders.0.groups.1.flows", 70_000, "run file: there are more than 20000 flows"),
        ("senders.0.groups.0.receiver", "R9", "run file: a group's receiver is none of the receivers"),
        ("senders.0.groups.0.start_s", [1], "run file: what must be a pair is none"),
        ("control", ABSENT, "/nowhere/artifact"),
        ("finetune", TUNING, "run file: finetune and questions need control model"),
    ],
)
def test_what_would_lead_out_of_bounds_is_refused_in_one_line(
    program: Path, tmp_path: Path, path: str, value: Any, message: str
) -> None:
    """Ranges are the scenario's to check (tests/unit/test_lab_scenario.py); these protect memory."""
    run = copy.deepcopy(figure8())
    change(path, value)(run)
    assert message in refused(program, run, tmp_path / "out")


def test_a_broken_run_file_an_old_result_and_a_mismatched_artifact(
    program: Path, make_artifact: Callable[..., Path], project: Path, tmp_path: Path
) -> None:
    assert "out.json: a syntax error at byte 13" in refused(program, '{"format": 1', tmp_path / "out")
    other = tmp_path / "other-windows"
    shutil.copytree(make_artifact(5), other)
    described = json.loads((other / "model.json").read_text())
    (other / "model.json").write_text(json.dumps(described | {"schema_hash": "f" * 64}))
    line = refused(program, figure8(control=model(other)), tmp_path / "out")
    assert "made for features 'ffffffffffff', this engine reads" in line
    line = refused(
        program, figure8(control=model(project / "tests/data/artifacts/v1-tiny")), tmp_path / "out"
    )
    assert "v1-tiny" in line
    assert "commit ebbf31e4 is the last one that serves it" in line

    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [program, f"--run={tmp_path / 'out.json'}", f"--out={tmp_path / 'out'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "exists already: a result is never overwritten" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_a_killed_run_leaves_no_result(program: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "run.json", tmp_path / "out"
    partial = tmp_path / "out.partial"
    file.write_text(json.dumps(third(seconds=1000, outputs=["pcap"])))
    running = subprocess.Popen([program, f"--run={file}", f"--out={out}"], stdout=subprocess.DEVNULL)
    wait_until(lambda: (partial / "s1.pcap").exists() and (partial / "s1.pcap").stat().st_size > 50_000)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert partial.exists()
    assert not out.exists()
    simulate(program, third(seconds=1.5), out)
    assert not partial.exists()
    assert {p.name for p in out.iterdir()} == {"cost.json", "summary.json", "trace.json"}


def with_disc(kind: str, **attributes: str) -> Run:
    """A third of figure 8 whose bottleneck has that disc."""
    run = third(outputs=["truth"])
    run["bottlenecks"][0]["disc"] = {"type": f"ns3::{kind}", "attributes": attributes}
    return run


@pytest.mark.long
def test_a_bottleneck_has_any_disc_of_ns3(program: Path, tmp_path: Path) -> None:
    """The run's limit holds in bytes or packets; the disc that is not DualPI2 has no two queues to count."""
    delays_us = {}
    for kind, attributes in (("FifoQueueDisc", {}), ("FqCoDelQueueDisc", {}), ("CoDelQueueDisc", {})):
        out = tmp_path / kind
        summary = simulate(program, with_disc(kind, **attributes), out)
        (bottleneck,) = summary["bottlenecks"]
        assert (bottleneck["l4s"], bottleneck["classic"]) == (None, None)
        assert 0.3 < bottleneck["utilisation"] <= 1
        assert summary["senders"]["S1"]["l4s"]["goodput_bps"] > 1e6
        delays_us[kind] = np.nanmax(truth_of(out)["queueing_us"])
    # 330,000 bytes at 33 Mbit/s; an AQM keeps it far below
    assert 60_000 < delays_us["FifoQueueDisc"] < 81_000
    assert delays_us["CoDelQueueDisc"] < delays_us["FifoQueueDisc"]
    shorter = simulate(program, with_disc("FifoQueueDisc", MaxSize="30p"), tmp_path / "shorter")
    assert shorter["senders"]["S1"]["l4s"]["queueing_us"]["max"] < 30 * 1500 * 8 / 33
    assert shorter["disc"] == [{"MaxSize": "30p"}]


@pytest.mark.long
def test_attributes_of_the_dual_queue_come_after_the_profiles(program: Path, tmp_path: Path) -> None:
    plain = simulate(program, third(outputs=["truth"]), tmp_path / "plain")
    same = simulate(program, with_disc("DualPi2QueueDisc"), tmp_path / "same")
    assert same["bottlenecks"] == plain["bottlenecks"]
    assert (tmp_path / "same" / "truth.npy").read_bytes() == (tmp_path / "plain" / "truth.npy").read_bytes()
    early = simulate(program, with_disc("DualPi2QueueDisc", LStep="1ms"), tmp_path / "early")
    assert early["disc"][0]["LStep"] == "1ms"
    waits_us = [one["senders"]["S1"]["l4s"]["queueing_us"]["p99"] for one in (early, plain)]
    assert waits_us[0] < waits_us[1] / 2


@pytest.mark.parametrize(
    ("kind", "attributes", "line"),
    [
        ("NoQueueDisc", {}, "bottlenecks.0.disc.type: there is no queue disc ns3::NoQueueDisc"),
        ("TcpDctcp", {}, "bottlenecks.0.disc.type: there is no queue disc ns3::TcpDctcp"),
        ("QueueDisc", {}, "bottlenecks.0.disc.type: there is no queue disc ns3::QueueDisc"),
        ("DualPi2QueueDisc", {"Step": "1ms"}, "disc.attributes.Step: ns3::DualPi2QueueDisc has no such"),
        ("DualPi2QueueDisc", {"LAqm": "Stairs"}, "disc.attributes.LAqm: 'Stairs' is no ns3::EnumValue"),
        ("DualPi2QueueDisc", {"CWeight": "7"}, "disc.attributes.CWeight: '7' is no ns3::DoubleValue"),
        ("FifoQueueDisc", {"MaxSize": "many"}, "disc.attributes.MaxSize: 'many' is no ns3::QueueSizeValue"),
        ("DualPi2QueueDisc", {"LStep": "soon"}, "disc.attributes.LStep: 'soon' is no ns3::TimeValue"),
        ("DualPi2QueueDisc", {"LStep": "5"}, "ns3::DualPi2QueueDisc takes (with a unit, as 5ms)"),
        ("FqCoDelQueueDisc", {"Target": "5"}, "disc.attributes.Target: '5' is no ns3::StringValue"),
        ("DualPi2QueueDisc", {"LAqm": "step"}, "ns3::DualPi2QueueDisc takes (Ramp|Step)"),
        ("DualPi2QueueDisc", {"LMinPackets": "two"}, "LMinPackets: 'two' is no ns3::UintegerValue"),
        ("DualPi2QueueDisc", {"LMinPackets": "1.5"}, "LMinPackets: '1.5' is no ns3::UintegerValue"),
        ("DualPi2QueueDisc", {"CWeight": "nan"}, "disc.attributes.CWeight: 'nan' is no ns3::DoubleValue"),
        ("CoDelQueueDisc", {"UseEcn": "yes"}, "disc.attributes.UseEcn: 'yes' is no ns3::BooleanValue"),
        (
            *("DualPi2QueueDisc", {"LRange": "1ms"}),
            "disc.attributes.LRange: without effect under uncoupled, where LAqm is Step; add LAqm: Ramp",
        ),
        (
            "DualPi2QueueDisc",
            {"TimeShift": "1ms"},
            "Scheduler is WeightedRoundRobin; add Scheduler: Time",
        ),
        (
            *("DualPi2QueueDisc", {"Scheduler": "TimeShiftedFifo", "CWeight": "0.1"}),
            "disc.attributes.CWeight: without effect under uncoupled, where Scheduler is TimeShiftedFifo",
        ),
    ],
)
def test_a_disc_that_cannot_be_is_one_line(
    program: Path, tmp_path: Path, kind: str, attributes: dict[str, str], line: str
) -> None:
    assert line in refused(program, with_disc(kind, **attributes), tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "attributes", "reason"),
    [
        ("RedQueueDisc", {"MinTh": "50", "MaxTh": "10"}, "m_minTh <= m_maxTh"),
        (
            "DualPi2QueueDisc",
            {"MaxSize": "1000B"},
            "DualPi2QueueDisc: MaxSize 1000B is less than one packet of Mtu 1500 bytes",
        ),
    ],
)
def test_where_ns3_ends_the_process_its_reason_is_quoted(
    program: Path, kind: str, attributes: dict[str, str], reason: str
) -> None:
    line = check(program, with_disc(kind, **attributes))
    assert line == f"bottlenecks: ns-3 cannot set up a network with these discs: {reason}"


def test_an_oracle_needs_a_view_of_the_queues(program: Path, tmp_path: Path) -> None:
    oracle = {"kind": "oracle", "margin_us": 1000, "order": "any", "rate_us": 20_000}
    run = with_disc("FqCoDelQueueDisc") | {"control": oracle}
    assert refused(program, run, tmp_path / "out") == "bottlenecks.0.disc: there is no view of its queues"


def batched(by: Run, **changes: Any) -> Run:
    """A control that decides as the model does, on something else."""
    restraint = {"margin_us": 0, "margin_share": 0, "max_moved_unacked": 1_000_000}
    base = {"kind": "batched", "by": by, "inference_us": 200, "until_decided": "previous"}
    return base | restraint | changes


def view(age_us: float) -> Run:
    return {"kind": "view", "rate_us": 20_000, "age_us": age_us}


@pytest.mark.long
def test_each_choice_is_scored_by_what_the_packet_found(program: Path, tmp_path: Path) -> None:
    """The queues at a packet's arrival foretell its wait, and regret is what they say of its choice."""
    run = figure8(seconds=4, outputs=["truth", "waits"], moved_ecn="ect0")
    bursts = {"kind": "random", "share": 0.5, "burst_packets": 8, "seed": 1}
    summary = simulate(program, run | {"control": bursts}, tmp_path / "out")
    rows, waits = truth_of(tmp_path / "out"), np.load(tmp_path / "out" / "waits.npy")
    assert len(waits) == len(rows)
    assert waits[0].tolist() == (0, 0)  # its own bytes do not count
    found = ~np.isnan(waits["l4s_us"])
    assert found[~np.isnan(rows["one_way_us"])].all()
    assert (rows["dropped"][~found] + (rows["sent_ns"][~found] > 3.99e9) > 0).all()
    chosen_us = np.where(rows["queue"] == 1, waits["l4s_us"], waits["classic_us"])
    arrived = ~np.isnan(rows["queueing_us"])
    off_us = np.abs(chosen_us - rows["queueing_us"])[arrived]
    assert np.corrcoef(chosen_us[arrived], rows["queueing_us"][arrived])[0, 1] > 0.9
    assert off_us.mean() < 0.25 * rows["queueing_us"][arrived].mean()

    scored = (rows["sent_ns"] >= 1e9) & (rows["default_queue"] == 1) & found
    more_us = (waits["classic_us"] - waits["l4s_us"])[scored]
    classic = rows["queue"][scored] == 0
    apart = np.abs(more_us) > 120  # a packet's time at 100 Mbit/s
    regret_us = np.maximum(0, np.where(classic, more_us, -more_us))
    choice = summary["choice"]
    assert (choice["apart"], choice["right"]) == (apart.sum(), (classic == (more_us < 0))[apart].sum())
    assert choice["regret_us"]["count"] == scored.sum()
    assert choice["regret_us"]["mean"] == pytest.approx(regret_us.mean(), rel=1e-5)
    assert choice["classic_less_l4s_us"]["max"] == pytest.approx(more_us.max(), rel=1e-5)


@pytest.mark.long
def test_waits_and_utilisation_are_of_the_rate_that_a_variable_link_has(
    program: Path, tmp_path: Path
) -> None:
    run = figure8(seconds=5, outputs=["truth", "waits"])
    (link,) = run["bottlenecks"]
    link["rates"] = [[0, link["rate_bps"]], [1, link["rate_bps"] / 4]]
    summary = simulate(program, run | {"control": {"kind": "default"}}, tmp_path / "out")
    rows, waits = truth_of(tmp_path / "out"), np.load(tmp_path / "out" / "waits.npy")
    chosen_us = np.where(rows["queue"] == 1, waits["l4s_us"], waits["classic_us"])
    waited = (rows["sent_ns"] > 2e9) & (rows["queueing_us"] > 1_000)  # nan: no
    assert waited.sum() > 100
    assert 0.8 < np.median(chosen_us[waited] / rows["queueing_us"][waited]) < 1.2
    assert 0.7 < summary["bottlenecks"][0]["utilisation"] <= 1


@pytest.mark.long
def test_who_sees_the_queues_now_chooses_best(program: Path, tmp_path: Path) -> None:
    """Rungs of the ladder, without a limit: how often they choose the shorter queue."""
    controls = {
        "default": {"kind": "default"},
        "chance": batched({"kind": "chance", "share": 0.5, "seed": 1}),
        "late": batched(view(40_000)),
        "now": batched(view(0)),
    }
    right = {}
    for name, control in controls.items():
        run = figure8(seconds=6, warmup_s=2, outputs=["waits"], moved_ecn="ect0", acks="selective")
        choice = simulate(program, run | {"control": control}, tmp_path / name)["choice"]
        right[name] = choice["right"] / choice["apart"]
    assert right["now"] > 0.75
    assert right["now"] > 0.2 + max(right[name] for name in ("default", "chance", "late"))


@pytest.mark.long
def test_flows_are_split_and_the_limit_holds(program: Path, tmp_path: Path) -> None:
    outputs = {"outputs": ["truth"], "acks": "selective", "moved_ecn": "ect0"}
    simulate(program, figure8(**outputs, control={"kind": "flow_split", "share": 0.5}), tmp_path / "split")
    rows = truth_of(tmp_path / "split")
    l4s = rows[rows["default_queue"] == 1]
    classic = {flow: set(l4s["queue"][l4s["flow"] == flow]) for flow in set(l4s["flow"].tolist())}
    assert sorted(map(len, classic.values())) == [1] * 6  # each flow in one queue
    assert sum(queue == {0} for queue in classic.values()) == 3
    assert rows["reordered"].sum() == 0

    moved = {}
    for limit in (0, 1_000_000):
        control = batched({"kind": "always"}, max_moved_unacked=limit)
        summary = simulate(program, figure8(**outputs, control=control), tmp_path / f"always-{limit}")
        moved[limit] = summary["moved"]["share"]
    assert moved[0] == 0
    assert moved[1_000_000] > 0.95


@pytest.mark.long
def test_a_placebo_repeats_decisions_at_another_time(program: Path, tmp_path: Path) -> None:
    """Flow 0 was moved from the start to 1.5 s of a run of 3 s: a second later, that is from 1 s to 2.5."""
    record = tmp_path / "decisions.txt"
    record.write_text("0 0 0\n1500000000 0 1\n")
    by = {"kind": "record", "decisions": str(record), "shift_us": 1_000_000}
    changes = {"outputs": ["truth", "decisions"], "acks": "selective", "moved_ecn": "ect0", "warmup_s": 0}
    simulate(program, figure8(**changes, control=batched(by)), tmp_path / "placebo")
    rows = truth_of(tmp_path / "placebo")
    own = rows[(rows["flow"] == 0) & (rows["default_queue"] == 1)]
    at_s = own["sent_ns"] / 1e9
    clear = np.minimum(abs(at_s - 1), abs(at_s - 2.5)) > 0.05  # a batch is decided ahead
    inside = (at_s > 1) & (at_s < 2.5)
    assert ((own["queue"] == 0) == inside)[clear].mean() > 0.98
    assert inside[clear].sum() > 20
    others = rows[(rows["flow"] != 0) & (rows["default_queue"] == 1)]
    assert (others["queue"] == 1).all()
    # what it decided is itself a record
    at_ns = [
        int(line.split()[0]) for line in (tmp_path / "placebo" / "decisions.txt").read_text().splitlines()
    ]
    assert any(abs(ns - 1e9) < 5e7 for ns in at_ns)

    by = {"kind": "record", "decisions": str(tmp_path / "nowhere.txt"), "shift_us": 0}
    line = refused(program, figure8(control=batched(by)), tmp_path / "out")
    assert line == f"cannot read {tmp_path / 'nowhere.txt'}"
    line = refused(program, figure8(outputs=["decisions"]), tmp_path / "out")
    assert line.endswith("run file: decisions need control model or batched")


@pytest.mark.long
def test_marks_of_moved_packets_may_be_losses_to_their_flows(program: Path, tmp_path: Path) -> None:
    """S1's L4S flows, all of whose packets are moved, get less where marks are losses.

    Where none is moved nothing changes."""
    common = third(moved_ecn="ect0", acks="selective", outputs=["truth"], seconds=6)
    for sender in common["senders"]:  # always something to send, so that the window is what counts
        for flows in sender["groups"]:
            flows["traffic"] = {"kind": "greedy"}
    goodputs, bytes_of = {}, {}
    for share in (0, 1):
        for response in ("", "classic"):
            control = {"kind": "random", "share": share, "burst_packets": 8, "seed": 1}
            said = {"moved_response": response} if response else {}
            out = tmp_path / f"{share}-{response}"
            summary = simulate(program, common | said | {"control": control}, out)
            goodputs[share, response] = summary["senders"]["S1"]["l4s"]["goodput_bps"]
            bytes_of[share, response] = (out / "truth.npy").read_bytes()
    assert len({said for (share, _), said in bytes_of.items() if share == 0}) == 1
    assert goodputs[1, "classic"] < 0.9 * goodputs[1, ""]


def test_a_paced_flow_sends_no_bursts(program: Path, tmp_path: Path) -> None:
    """Of S1's L4S packets fewer follow one of their own flow at once."""
    shares = {}
    for paced in ("", "on"):
        run = third(outputs=["truth"])
        run["senders"][0]["groups"][0] |= {"paced": paced} if paced else {}
        simulate(program, run, tmp_path / f"paced-{paced}")
        rows = truth_of(tmp_path / f"paced-{paced}")
        gaps_ns = np.concatenate(
            [np.diff(rows["sent_ns"][rows["flow"] == flow]) for flow in np.unique(rows["flow"])[:2]]
        )
        shares[paced] = float((gaps_ns < 50_000).mean())
    assert shares["on"] < shares[""] / 2


def test_a_message_takes_until_its_last_byte_is_there(program: Path, tmp_path: Path) -> None:
    """On an idle path each burst of packets is a message; on a slow one some are unfinished."""
    rare = {"kind": "messages", "rate_bps": 50e3, "sizes": "hadoop"}
    alone = group(1, "cubic", "ect0", start_s=[0, 0], traffic=rare)
    run = figure8(seed=2, seconds=800, outputs=["truth"])
    run["senders"][0]["groups"] = [alone]
    run["senders"][1]["groups"] = [alone | {"flows": 0}]
    said = simulate(program, run, tmp_path / "idle")["messages"]
    assert said["cross"] == dict.fromkeys(("l4s", "classic"), said["S1"]["l4s"])
    assert said["S1"]["l4s"]["byte_mean_s"] is None

    rows = truth_of(tmp_path / "idle")
    rows = rows[rows["sent_ns"] > 1e9]  # the first message waits for the connection
    sent_s = rows["sent_ns"] * 1e-9
    bursts = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(sent_s) > 0.06) + 1)
    payload = np.array([(rows["size_bytes"][burst] - 52.0).sum() for burst in bursts])
    there_s = sent_s + rows["one_way_us"] * 1e-6
    took_s = np.array([there_s[burst].max() - sent_s[burst[0]] for burst in bursts])
    classic = said["S1"]["classic"]
    assert (classic["count"], classic["unfinished"], classic["bytes"]) == (len(bursts), 0, payload.sum())
    assert classic["byte_mean_s"] == pytest.approx((payload * took_s).sum() / payload.sum(), rel=1e-3)

    run = third(bottlenecks=[{"rate_bps": 3e6, "delay_ms": 20, "buffer_bytes": 30_000}])
    l4s = simulate(program, run, tmp_path / "slow")["messages"]["S1"]["l4s"]
    assert 0 < l4s["unfinished"] <= l4s["count"]
    assert 0 < l4s["unfinished_bytes"] <= l4s["bytes"]
    assert 0 < l4s["byte_mean_s"] < run["seconds"] - run["warmup_s"]
