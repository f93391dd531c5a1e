"""The laboratory's program with two uplinks: marks choose the link, and what is lost or diverted is counted.

Runs are short and seeded, so every figure here is the same each time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from test_lab_program import Result, Run, refused, simulate

from swiftqueue.laboratory.command import Request, run_lab
from swiftqueue.laboratory.report.page import make_report
from swiftqueue.laboratory.runs.experience import UPLINKS, load
from swiftqueue.pipelines.simulators import build_simulator

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

FAST_MS, SLOW_MS = 10, 60
CALL = {"kind": "real_time", "frames_per_s": 30, "least_bps": 900_000, "most_bps": 900_000}
GREEDY = {"kind": "greedy"}


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator(program="lab")


def group(tcp: str, traffic: Run, uplink: int | None = None, flows: int = 1) -> Run:
    pinned = {} if uplink is None else {"uplink": uplink}
    same = {"ecn": "not_ect", "receiver": "R1", "start_s": [0, 0.2], "dupack_threshold": 3}
    return {"flows": flows, "tcp": tcp, "traffic": traffic, **same, **pinned}


def probe(uplink: int) -> Run:
    """64 bytes every 100 ms, which tell the sender of a link."""
    return group("cubic", {"kind": "cbr", "rate_bps": 5120, "packet_bytes": 64}, uplink)


def link(delay_ms: float, **changes: Any) -> Run:
    disc = {"type": "ns3::FifoQueueDisc", "attributes": {}}
    return {"rate_bps": 10e6, "delay_ms": delay_ms, "buffer_bytes": 200_000, "disc": disc} | changes


def over_two(
    *own: Run, cross: Sequence[Run] = (), delays_ms: tuple[float, float] = (10, 10), **c: Any
) -> Run:
    """Four seconds of S1's flows and probes over two links; `cross` are another sender's groups."""
    senders = [{"name": "S1", "groups": [*own, probe(0), probe(1)]}]
    senders += [{"name": "cross", "groups": [*cross]}] if cross else []
    marks = [("first", 0), ("second", 8)]
    return {
        "format": 1,
        "name": "uplinks",
        "seed": 1,
        "seconds": 4,
        "warmup_s": 1,
        "profile": "rfc9332",
        "bottlenecks": [link(delay_ms) for delay_ms in delays_ms],
        "uplinks": [{"name": name, "dscp": dscp, "routed": "on"} for name, dscp in marks],
        "receivers": [{"name": "R1", "router": 1, "delay_ms": 0.1}],
        "senders": [sender | {"router": 0, "delay_ms": 0.1} for sender in senders],
        "control": {"kind": "default"},
        "moved_ecn": "not_ect",
        "acks": "selective",
        "explore": {"share": 0, "burst_packets": 8, "seed": 1},
        "finetune": None,
        "outputs": ["truth"],
    } | c


def random(burst: int = 1) -> Run:
    return {"kind": "random", "share": 0.5, "burst_packets": burst, "seed": 1}


def least(of: str) -> Run:
    when = {"margin_us": 5000, "every_s": 0.5} if of == "mean" else {"margin_us": 0, "every_s": 0}
    return {"kind": "least_latency", "of": of, **when}


AGENT_RULE = {"kind": "agent_rule", "inference_us": 200, "until_decided": "previous"}
ORACLE = {"kind": "oracle", "order": "any", "margin_us": 0, "rate_us": 0}


def truth_of(out: Path, summary: Result) -> NDArray[Any]:
    """S1's packets; what passed over both links adds up to what arrived, was lost, or is still under way."""
    rows: NDArray[Any] = np.load(out / "truth.npy")
    links = summary["uplinks"]["links"]
    assert [one["name"] for one in links] == ["first", "second"]
    gone = ~np.isnan(rows["one_way_us"]) | (rows["dropped"] == 1)
    passed = sum(one["packets"] for one in links)
    assert gone.sum() <= passed <= len(rows)
    assert (rows["sent_ns"][-1] - rows["sent_ns"][~gone] < 0.4e9).all()
    steered = [g["traffic"] for g in summary["run"]["senders"][0]["groups"] if "uplink" not in g]
    assert bool(steered) == (summary["moved"]["l4s_data_packets"] > 0)
    return rows


def propagation_ms(rows: NDArray[Any]) -> NDArray[np.float64]:
    """One-way delay without waiting in a link's disc, of what arrived."""
    some = rows[~np.isnan(rows["one_way_us"])]
    return np.asarray(some["one_way_us"] - some["queueing_us"], np.float64) * 1e-3


def test_a_mark_is_routed_and_a_pinned_flow_stays(program: Path, tmp_path: Path) -> None:
    call = group("copa", CALL, flows=2)
    run = over_two(call, delays_ms=(FAST_MS, SLOW_MS), control=random())
    summary = simulate(program, run, tmp_path / "out")
    rows = truth_of(tmp_path / "out", summary)
    middle_ms = (FAST_MS + SLOW_MS) / 2
    for queue, fast in ((0, True), (1, False)):
        here = propagation_ms(rows[rows["queue"] == queue])
        assert here.size > 100
        assert ((here < middle_ms) == fast).all()
    for flow, uplink in ((2, 0), (3, 1)):  # the probes
        assert set(rows["queue"][rows["flow"] == flow]) == {uplink}
    steered = rows["queue"][rows["flow"] < 2]
    assert 0.4 < (steered == 0).mean() < 0.6
    left = [one["packets"] for one in summary["uplinks"]["links"]]
    assert left == pytest.approx([(rows["queue"] == queue).sum() for queue in (0, 1)], abs=2)
    assert [(one["unrouted"], one["diverted"]) for one in summary["uplinks"]["links"]] == [(0, 0)] * 2


def test_acknowledgements_come_back_over_the_link_of_their_packet(program: Path, tmp_path: Path) -> None:
    run = over_two(group("copa", CALL), delays_ms=(FAST_MS, SLOW_MS), control=random(burst=64))
    rows = truth_of(tmp_path / "out", simulate(program, run, tmp_path / "out"))
    for flow, least_ms in ((1, 2 * FAST_MS), (2, 2 * SLOW_MS)):  # the probes, alone on their links
        found = rows["latency_us"][rows["flow"] == flow]
        assert np.nanmin(found) * 1e-3 == pytest.approx(least_ms, abs=2)


def test_the_oracle_beats_pinned_where_the_other_link_is_idle(program: Path, tmp_path: Path) -> None:
    cross = [group("cubic", GREEDY, uplink=1, flows=2)]
    call = group("copa", CALL)
    controls = {"pinned": {"kind": "default"}, "oracle": ORACLE}
    controls |= {of: least(of) for of in ("last", "smoothed", "mean")}
    controls["virtual_queue"] = {"kind": "virtual_queue", "margin_us": 0}
    controls["agent_rule"] = AGENT_RULE
    p99_ms, moved = {}, {}
    for name, control in controls.items():
        summary = simulate(program, over_two(call, cross=cross, control=control), tmp_path / name)
        rows = truth_of(tmp_path / name, summary)
        own = rows[(rows["flow"] == 0) & (rows["sent_ns"] > 1e9)]
        p99_ms[name] = np.nanquantile(own["one_way_us"], 0.99) * 1e-3
        moved[name] = summary["moved"]["share"]
        assert summary["senders"]["cross"]["classic"]["goodput_bps"] > 7e6
    assert moved["pinned"] == 0
    assert moved["oracle"] > 0.9
    assert p99_ms["oracle"] < 20 < 60 < p99_ms["pinned"]
    for name in ("last", "smoothed", "mean", "virtual_queue", "agent_rule"):
        assert moved[name] > 0.5, name
        assert p99_ms[name] < p99_ms["pinned"], name


def test_a_call_that_nobody_acknowledges_does_not_blind_the_agents_rule(
    program: Path, tmp_path: Path
) -> None:
    """GCC's packets stay under way for two seconds: their age says nothing of the link that they took."""
    cross = [group("cubic", GREEDY, uplink=1, flows=2)]
    calls = group("copa", CALL), group("gcc", CALL)
    p99_ms = {}
    for name, control in (("pinned", {"kind": "default"}), ("rule", AGENT_RULE)):
        run = over_two(*calls, cross=cross, control=control, seconds=6)
        rows = truth_of(tmp_path / name, simulate(program, run, tmp_path / name))
        own = rows[(rows["flow"] == 0) & (rows["sent_ns"] > 1e9)]
        p99_ms[name] = np.nanquantile(own["one_way_us"], 0.99) * 1e-3
    assert p99_ms["rule"] < 0.5 * p99_ms["pinned"]


def test_who_sees_the_links_now_chooses_better_than_who_saw_them(program: Path, tmp_path: Path) -> None:
    cross = [group("cubic", {"kind": "messages", "rate_bps": 6e6, "sizes": "hadoop"}, i) for i in (0, 1)]
    batching = {"inference_us": 0, "until_decided": "previous", "margin_us": 0, "margin_share": 0}
    by = {"kind": "view", "rate_us": 0, "age_us": 400_000}
    old = {"kind": "batched", "by": by, **batching, "max_moved_unacked": 1_000_000}
    waits_us = {}
    for name, control in (("now", ORACLE), ("old", old)):
        run = over_two(group("copa", CALL), cross=cross, control=control, seconds=12)
        simulate(program, run, tmp_path / name)
        rows = np.load(tmp_path / name / "truth.npy")
        waits_us[name] = np.nanmean(rows["queueing_us"][rows["flow"] == 0])
    assert waits_us["now"] < waits_us["old"]


def test_a_mark_without_a_rule_takes_the_other_link_and_is_counted(program: Path, tmp_path: Path) -> None:
    run = over_two(group("copa", CALL), delays_ms=(FAST_MS, SLOW_MS))
    run["uplinks"][1]["routed"] = "off"
    summary = simulate(program, run, tmp_path / "out")
    rows = truth_of(tmp_path / "out", summary)
    assert (propagation_ms(rows) < (FAST_MS + SLOW_MS) / 2).all()
    first, second = summary["uplinks"]["links"]
    assert first["unrouted"] == pytest.approx((rows["queue"] == 1).sum(), abs=2)
    assert first["unrouted"] > 100
    assert second["packets"] == 0


def test_what_was_to_take_a_dead_link_takes_the_other(program: Path, tmp_path: Path) -> None:
    cross = [group("cubic", GREEDY, uplink=1)]
    run = over_two(group("copa", CALL), cross=cross, delays_ms=(FAST_MS, SLOW_MS))
    run["uplinks"][1]["dies_s"] = 2
    summary = simulate(program, run, tmp_path / "out")
    rows = truth_of(tmp_path / "out", summary)
    late = rows[rows["sent_ns"] > 2.001e9]
    first, second = summary["uplinks"]["links"]
    assert first["diverted"] == pytest.approx((late["queue"] == 1).sum(), abs=4)
    assert first["diverted"] > 50
    assert second["diverted"] == 0
    assert (propagation_ms(late) < (FAST_MS + SLOW_MS) / 2).all()
    lost = rows[rows["dropped"] == 1]
    assert lost.size  # what was under way when it died
    assert set(lost["queue"]) == {1}
    assert (lost["sent_ns"] < 2.001e9).all()
    at = summary["calls"][0]
    delays = np.array(at["delay_s"], np.float64)[np.array(at["made_s"]) > 3]
    assert (delays[:-3] < 0.19).all()  # the call has recovered; the last frames are under way
    alive_bps = simulate(program, over_two(group("copa", CALL), cross=cross), tmp_path / "alive")
    both = [one["senders"]["cross"]["classic"]["goodput_bps"] for one in (summary, alive_bps)]
    assert both[0] < 0.6 * both[1]  # nobody carries the others' traffic


def test_reordering_and_resending_in_vain_are_counted(program: Path, tmp_path: Path) -> None:
    call = group("cubic", CALL, flows=2)
    pinned = simulate(program, over_two(call, delays_ms=(FAST_MS, SLOW_MS)), tmp_path / "pinned")
    mixed = simulate(
        program, over_two(call, delays_ms=(FAST_MS, SLOW_MS), control=random()), tmp_path / "mixed"
    )
    for summary, wild in ((pinned, False), (mixed, True)):
        own = summary["senders"]["S1"]["l4s"]
        vain = summary["uplinks"]["spurious_retransmissions"]["S1"]
        assert own["dropped"] == 0
        assert (own["reordered"] > 50) == wild
        assert (own["retransmissions"] > 10) == wild
        # nothing was lost, but the first sending may be under way at the end
        assert own["retransmissions"] - 2 <= vain <= own["retransmissions"]


def test_a_lost_packet_is_not_resent_in_vain(program: Path, tmp_path: Path) -> None:
    run = over_two(group("cubic", GREEDY), seconds=6)
    run["bottlenecks"][1]["buffer_bytes"] = 20_000
    summary = simulate(program, run, tmp_path / "out")
    own = summary["senders"]["S1"]["l4s"]
    assert own["dropped"] > 10
    assert own["retransmissions"] >= own["dropped"] - 3
    assert summary["uplinks"]["spurious_retransmissions"]["S1"] <= 0.2 * own["retransmissions"]


@pytest.mark.parametrize("tcp", ["copa", "gcc"])
def test_a_decision_holds_for_a_frame(tcp: str, program: Path, tmp_path: Path) -> None:
    changes = {}
    for hold in ("packet", "batch", "write"):
        run = over_two(group(tcp, CALL), control=random(), hold=hold)
        summary = simulate(program, run, tmp_path / hold)
        rows = truth_of(tmp_path / hold, summary)
        own = rows[(rows["flow"] == 0) & (rows["retransmitted"] == 0)]
        changes[hold] = int((np.diff(own["queue"].astype(int)) != 0).sum())
        frames, packets = len(summary["calls"][0]["made_s"]), len(own)
    assert 0 < changes["write"] <= frames < changes["packet"]
    assert 0 < changes["batch"] <= packets / 4


def test_the_same_run_gives_the_same_bytes(program: Path, tmp_path: Path) -> None:
    cross = [group("cubic", {"kind": "messages", "rate_bps": 4e6, "sizes": "hadoop"}, uplink=1, flows=2)]
    run = over_two(group("gcc", CALL), cross=cross, control=random(burst=8), seconds=3, hold="write")
    for name in ("one", "two"):
        simulate(program, run, tmp_path / name)
    for file in ("summary.json", "truth.npy", "trace.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    p99_s = json.loads((tmp_path / "one" / "summary.json").read_text())["cross_message_p99_s"]
    assert 0.01 < p99_s < 3


def test_a_links_rates_are_its_own(program: Path, tmp_path: Path) -> None:
    run = over_two(group("cubic", GREEDY), seconds=5)
    run["bottlenecks"][1]["rates"] = [[0, 10e6], [2, 2e6]]
    summary = simulate(program, run, tmp_path / "out")
    first, second = summary["bottlenecks"]
    assert second["utilisation"] > 0.8
    assert first["utilisation"] < 0.05


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda run: run["uplinks"].pop(), "run file: uplinks are two bottlenecks"),
        (lambda run: run["bottlenecks"].append(link(5)), "run file: uplinks are two bottlenecks"),
        (
            lambda run: run["senders"][0]["groups"][1].update(uplink=2),
            "run file: a group's uplink is beyond the last",
        ),
        (
            lambda run: run["senders"].append(
                {"name": "x", "router": 0, "delay_ms": 0.1, "groups": [group("cubic", GREEDY)]}
            ),
            "run file: a group of another sender has no uplink",
        ),
        (
            lambda run: run["bottlenecks"][1].update(disc={"type": "ns3::NoDisc", "attributes": {}}),
            "uplinks.1.disc.type: there is no queue disc ns3::NoDisc",
        ),
    ],
)
def test_a_run_file_with_wrong_uplinks_is_one_line(
    change: Any, line: str, program: Path, tmp_path: Path
) -> None:
    run = over_two(group("copa", CALL))
    change(run)
    assert refused(program, run, tmp_path / "out").endswith(line)


def trees(folder: Path, below: dict[str, float], leaves: Sequence[float]) -> Path:
    """An artifact of one tree of two splits: small first inputs take the first leaf, and so on."""
    import torch

    from swiftqueue.models.networks.artifact import save
    from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling
    from swiftqueue.models.trees.network import QueryTrees, TreesForm

    units = {"queue_l4s": "flag", "size_bytes": "bytes"}
    made = QueryTrees(
        (), [ScaledFeature(n, units[n]) for n in below], TargetScaling("log"), TreesForm(1, 5, 2)
    )
    first, second = below.values()
    places = {"input_TN": [0, 1, 0, 0, 0], "left_TN": [2, 3, 2, 3, 4], "right_TN": [1, 4, 2, 3, 4]}
    values = {"below_TN": [first, second, 0, 0, 0], "leaf_TN": [0, 0, *np.log(leaves)]}
    state = {f"head.{name}": torch.tensor([each]) for name, each in places.items()}
    state |= {f"head.{name}": torch.tensor([each], dtype=torch.float32) for name, each in values.items()}
    made.load_state_dict(state | {"head.base": torch.zeros(1)})
    save(folder, made, {})
    return folder


def by_trees(artifact: Path) -> Run:
    batching = {"inference_us": 0, "until_decided": "previous", "margin_us": 0, "margin_share": 0}
    return {"kind": "model", "artifact": str(artifact), "version": 1, **batching, "max_moved_unacked": 10**6}


def test_trees_choose_the_link_that_they_forecast_less_for(program: Path, tmp_path: Path) -> None:
    """One tree asks for the queue alone, one means the opposite, and one asks for the size too."""
    shares = {}
    for name, below, leaves in (
        ("all", {"queue_l4s": 0.5, "size_bytes": 0}, (1e3, 1e9, 2e3)),  # queue 0 takes 1 ms, queue 1 takes 2
        ("none", {"queue_l4s": 0.5, "size_bytes": 0}, (2e3, 1e9, 1e3)),
        ("large", {"queue_l4s": 0.5, "size_bytes": 1000}, (2e3, 1e3, 3e3)),  # 3 ms in queue 1 if it is large
    ):
        artifact = trees(tmp_path / name, below, leaves)
        own = group("copa", CALL), group("cubic", {"kind": "cbr", "rate_bps": 64_000, "packet_bytes": 200})
        run = over_two(*own, control=by_trees(artifact))
        summary = simulate(program, run, tmp_path / f"out-{name}")
        rows = truth_of(tmp_path / f"out-{name}", summary)
        shares[name] = [(rows["queue"][rows["flow"] == flow] == 0).mean() for flow in (0, 1)]
        assert summary["decisions"]["decided"] == summary["decisions"]["batches"]
    assert min(shares["all"]) > 0.95  # the first packets leave before anything is decided
    assert max(shares["none"]) == 0
    call, small = shares["large"]
    assert small == 0
    assert call > 0.6  # the last packet of a frame is smaller


def test_trees_that_are_not_whole_or_to_be_tuned_are_one_line(program: Path, tmp_path: Path) -> None:
    good = trees(tmp_path / "trees", {"queue_l4s": 0.5, "size_bytes": 0}, (1e3, 1e9, 2e3))
    run = over_two(group("copa", CALL), control=by_trees(good))
    tuned = run | {"finetune": {"every_s": 1, "span_s": 1, "apply_after_s": 0, "command": ["true"]}}
    line = refused(program, tuned, tmp_path / "out")
    assert line.endswith(f"{good}: trees have no head to be tuned in a run")
    weights, described = good / "model.safetensors", good / "model.json"
    whole, text = weights.read_bytes(), described.read_text()
    for content, why in (
        (whole[:-9], "is cut off, or has another size than the trees"),
        (whole[:20], "truncated: its header is cut off"),
        (whole.replace(b'"I64"', b'"F64"'), "is not of type I64"),
    ):
        weights.write_bytes(content)
        assert refused(program, run, tmp_path / "out").endswith(why)
    weights.write_bytes(whole)
    described.write_text(text.replace('"depth": 2', '"depth": 65'))
    assert "depth" in refused(program, run, tmp_path / "out")
    described.write_text(text.replace("queue_l4s", "no_input"))
    assert refused(program, run, tmp_path / "out").endswith("feature 'no_input' is none of an event's row")


@pytest.mark.long
def test_a_scenario_is_run_and_reported(ray_cluster: None, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    changes = {"seconds": 4, "warmup_s": 1, "seeds": [1], "controls": ["default", "least_mean"]}
    mine.write_text(yaml.safe_dump({"extends": "uplinks-unequal", **changes}))
    assert run_lab(Request([str(mine)], points=["0.6"]), tmp_path / "lab") == 0
    rows = {row["control"]: row for row in load(tmp_path / "lab", UPLINKS).iter_rows(named=True)}
    assert set(rows) == {"default", "least_mean"}
    assert rows["default"]["moved_share"] == 0
    assert rows["default"]["diverted"] == rows["default"]["unrouted"] == 0
    assert rows["default"]["frame_p99_s"] > 0.03  # the delay of the second link
    page, _ = make_report(tmp_path / "lab")
    assert "Two uplinks" in page.read_text()
    assert "mine: what it costs, against pinned" in (page.parent / "table.md").read_text()
