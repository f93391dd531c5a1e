"""Figure 8 on the bed: the router's rules, DCTCP by struct_ops, figures of a log, the table of agreement."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from killed_runs import check_nothing_stays
from typer.testing import CliRunner
from waiting import wait_until

from swiftqueue.cli.app import app
from swiftqueue.laboratory.learning.judged_models import models_by_profile
from swiftqueue.laboratory.runs.resolve import cells, resolve
from swiftqueue.laboratory.runs.results import COMPLETE
from swiftqueue.laboratory.scenarios.files import load as load_scenario
from swiftqueue.laboratory.scenarios.files import path_of
from swiftqueue.testbed.host import router_log, scenario
from swiftqueue.testbed.host.hosts import Bed
from swiftqueue.testbed.host.lateness import router_error
from swiftqueue.testbed.host.programs import DCTCP, DCTCP_OBJECT, HOLDER
from swiftqueue.testbed.host.report import agreement, router_errors, router_table, side_by_side
from swiftqueue.testbed.host.runs import LATER, ROUTER, SCHEMA, keep, load
from swiftqueue.testbed.host.scenario import figures, groups_of, queue_of, rule_of, sizes_of
from swiftqueue.testbed.host.selfcheck import NO_AQM
from swiftqueue.testbed.host.tcp import PORT

CANNOT = scenario.why_not()
needs_bed = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
pytestmark = pytest.mark.usefixtures("kernels_controls_alone")
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
MODELS = Path(__file__).parents[2] / "docs" / "laboratory" / "models" / "bed-figure8-flows"
SECOND = 1_000_000_000


def log_of_a_flow() -> np.ndarray:
    """Four packets of 1,000 bytes, the third sent twice, one dropped; an ACK for each that came."""
    rows = [
        # arrived, started, due, kind, sequence, moved
        (0, 1, 10, router_log.FORWARD, 2**32 - 1000, 0),
        (1, 3, 12, router_log.FORWARD, 0, 1),
        (2, 2, -1, router_log.DROPPED, 1000, 0),
        (40, 45, 54, router_log.FORWARD, 1000, 0),
        (41, 46, 55, router_log.FORWARD, 2000, 0),
    ]
    acks = [(12, 20, 0), (13, 21, 1000), (55, 63, 2000), (56, 64, 3000)]
    log = np.zeros(len(rows) + len(acks), router_log.RECORD)
    for at, (arrived, started, due, kind, sequence, moved) in enumerate(rows):
        log[at]["arrived_ns"], log[at]["started_ns"] = arrived * 1_000_000, started * 1_000_000
        log[at]["due_ns"], log[at]["kind"], log[at]["moved"] = due * 1_000_000, kind, moved
        log[at]["sequence"] = sequence
    log["headers"], log["bytes"] = 52, 52
    log["bytes"][: len(rows)] += 1000
    log["source_port"], log["destination_port"] = 40_000, PORT
    for at, (arrived, due, acknowledged) in enumerate(acks, len(rows)):
        log[at]["arrived_ns"], log[at]["due_ns"] = arrived * 1_000_000, due * 1_000_000
        log[at]["acknowledged"], log[at]["kind"] = acknowledged, router_log.BACK
        log[at]["source_port"], log[at]["destination_port"] = PORT, 40_000
    return log


def test_the_figures_of_a_log_are_those_counted_by_hand() -> None:
    group = {"port": PORT, "s1": True, "l4s": True, "control": DCTCP}
    found = figures(log_of_a_flow(), [group], (0, SECOND))
    assert found["packets"] == 5
    assert found["queueing_packets"] == 4
    assert found["queueing_max_us"] == 5_000
    assert found["moved_share"] == found["dropped_share"] == found["retransmitted_share"] == 0.2
    # Without the packet that was sent twice (Karn): 20, 20 and 23 ms.
    assert found["rtt_p50_us"] == 20_000
    assert found["rtt_p99_us"] == pytest.approx(22_940)
    # From the first ACK of the span to the last.
    assert found["s1_goodput_bps"] == 3000 * 8
    assert found["cross_goodput_bps"] == found["classic_share"] == 0
    with pytest.raises(RuntimeError, match="no packet of S1's L4S flows"):
        figures(log_of_a_flow(), [group], (SECOND, 2 * SECOND))


def test_a_runs_lateness_is_of_its_span_and_of_every_flow_to_host_b() -> None:
    """120 packets of two flows came in the span, each 10 us late; a stall of 1 ms masks 20 of them."""
    log = np.zeros(401, router_log.RECORD)
    log["arrived_ns"][:200] = np.arange(200) * 1_000_000
    log["due_ns"][:200] = log["arrived_ns"][:200] + 5_000_000
    log["written_ns"][:200] = log["due_ns"][:200] + 10_000
    log["destination_port"][:200:2] = PORT
    log["kind"][200:400], log["written_ns"][200:400] = router_log.BACK, SECOND  # late, and not of these
    log["kind"][400] = router_log.STALL
    log["arrived_ns"][400], log["written_ns"][400] = 144_500_000, 145_500_000
    found = router_error(log, 15_000_000, (50_000_000, 170_000_000))
    assert found == {"late_p50_us": 10, "late_p99_us": 10, "late_p999_us": 10, "stalled_share": 20 / 120}
    assert router_error(log, 15_000_000, (50_000_000, 150_000_000))["late_p50_us"] is None


def test_sizes_are_the_simulators() -> None:
    sizes = sizes_of("web_search")
    assert (sizes[0], sizes[-1], len(sizes)) == ([1, 0], [30e6, 1], 12)
    assert len(sizes_of("hadoop")) == 20
    with pytest.raises(ValueError, match=r"sizes mail: message-sizes\.h has none of this name"):
        sizes_of("mail")


def test_the_bed_takes_its_groups_and_its_queue_from_the_laboratorys_run() -> None:
    asked = load_scenario(path_of("bed-figure8"))
    cell = next(iter(cells("bed-figure8", asked)))
    plain, none = (resolve(asked, cell, {"kind": kind}, []) for kind in ("default", "no_l4s"))
    groups = list(groups_of(plain))
    assert [(g["port"], g["flows"], g["control"], g["s1"]) for g in groups] == [
        (PORT, 6, DCTCP, True),
        (PORT + 1, 4, "cubic", True),
        (PORT + 2, 10, DCTCP, False),
    ]
    assert {g["control"] for g in groups_of(none)} == {"cubic"}
    assert queue_of("uncoupled", 400_000)["max_bytes"] == 800_000
    plain["senders"][0]["groups"][0]["tcp"] = "prague"
    with pytest.raises(ValueError, match="messages of DCTCP and Cubic, not messages of prague"):
        list(groups_of(plain))
    assert rule_of({"kind": "random", "share": 0.2, "burst_packets": 8})["move-share"] == 0.2
    with pytest.raises(ValueError, match=r"controls\.random\.burst_packets is 4; the router has 8"):
        rule_of({"kind": "random", "share": 0.2, "burst_packets": 4})


def rows(source: str, p99_ms: dict[str, float]) -> list[dict[str, object]]:
    plain: dict[str, object] = dict.fromkeys(SCHEMA)
    parameters = json.dumps({"bottlenecks": [{"rate_bps": 40_000_000}]})
    plain |= {"source": source, "scenario": "bed-figure8", "point": "", "profile": "uncoupled"}
    plain |= {"status": COMPLETE, "parameters": parameters, "queueing_packets": 1e5}
    return [
        plain
        | {"control": control, "seed": seed, "queueing_p99_us": ms * 1e3 * (1 + seed / 100)}
        | {"s1_goodput_bps": 2e7 * (1 + (seed * len(control) % 4 - 1.5) / 100)}
        for control, ms in p99_ms.items()
        for seed in range(1, 6)
    ]


def test_a_direction_is_said_where_both_are_settled(tmp_path: Path) -> None:
    keep(tmp_path, rows("kernel", {"default": 50.0, "oracle": 30, "random": 40}))
    keep(tmp_path, rows("ns3", {"default": 60.0, "oracle": 20, "random": 80}))
    lines = agreement(load(tmp_path))
    p99 = [line for line in lines if "| P99 |" in line]
    assert len(p99) == 2
    said = {control: next(line for line in p99 if f"`{control}`" in line) for control in ("oracle", "random")}
    assert said["oracle"].endswith("| agree |")
    assert "-40.0 %" in said["oracle"]
    assert "-66.7 %" in said["oracle"]
    assert said["random"].endswith("| disagree |")
    assert all(line.endswith("| open |") for line in lines if "S1's goodput" in line)
    [oracle_row] = [line for line in side_by_side(load(tmp_path)) if "`oracle`" in line]
    assert oracle_row.startswith("| bed-figure8, uncoupled | `oracle` | **-40.0 % (")
    assert " | **-66.7 % (" in oracle_row
    assert "Nothing is published yet" in side_by_side(load(tmp_path / "none"))[0]
    told = json.loads(CliRunner().invoke(app, ["bed", "report", "-o", str(tmp_path), "--json"]).stdout)
    (oracle,) = (one for one in told["directions"] if (one["control"], one["measure"]) == ("oracle", "P99"))
    assert oracle["direction"] == "agree"
    assert oracle["kernel"]["mean"] == pytest.approx(-0.4)
    assert oracle["ns3"]["high"] == pytest.approx(-2 / 3)
    keep(tmp_path, rows("ns3", {"default": 60.0}))  # in the place of the same
    assert len(load(tmp_path)) == 30
    assert "Nothing to compare yet" in agreement(load(tmp_path / "none"))[0]
    (tmp_path / "bed.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"damaged|cannot be read"):
        load(tmp_path)


def test_runs_of_another_length_or_program_are_refused_and_none_is_lost(tmp_path: Path) -> None:
    two = {"default": 50.0, "oracle": 30.0}
    keep(
        tmp_path, [row | {"seconds": 120.0} for row in rows("kernel", two)]
    )  # from before programs were noted
    keep(tmp_path, [row | {"seconds": 20.0, "program": "a"} for row in rows("ns3", two)])
    before = load(tmp_path)
    for row, line in (
        (
            {"seconds": 20.0},
            r"bed\.parquet has kernel runs of bed-figure8 with seconds 120\.0, and these .* 20\.0",
        ),
        ({"seconds": 120.0, "program": "a"}, r"with program None, and these are with a: name .* --output"),
    ):
        with pytest.raises(ValueError, match=line):
            keep(tmp_path, [old | row for old in rows("kernel", {"default": 40.0})])
    assert load(tmp_path).equals(before)
    keep(
        tmp_path, [row | {"seconds": 60.0, "program": "b"} for row in rows("kernel", two)]
    )  # all of them anew
    assert load(tmp_path).filter(source="kernel")["program"].to_list() == ["b"] * 10


@needs_bed
def test_a_short_trial_in_the_folder_of_whole_runs_is_one_line(tmp_path: Path) -> None:
    keep(tmp_path, [row | {"seconds": 120.0} for row in rows("kernel", {"default": 50.0})])
    trial = ["bed", "run", "figure8", "--seconds", "20", "--seeds", "1", "-o", str(tmp_path)]
    said = CliRunner().invoke(app, trial)
    assert "with seconds 120.0, and these are with 20.0" in str(said.exception)
    assert len(load(tmp_path)) == 5


def test_rows_from_before_the_routers_error_are_read(tmp_path: Path, project: Path) -> None:
    """What they lack is null, and said not to be measured; of new rows median and worst are said."""
    published = load(project / "docs" / "laboratory")
    assert published.schema == pl.Schema(SCHEMA)
    keep(tmp_path, rows("kernel", {"default": 50.0}))
    old = pl.read_parquet(tmp_path / "bed.parquet")
    old.drop(LATER).with_columns(queueing_cdf_us=[0.0, 7.0]).write_parquet(tmp_path / "bed.parquet")
    table = load(tmp_path)
    assert table.schema == pl.Schema(SCHEMA)
    assert table.select(LATER).row(0, named=True) == dict.fromkeys(LATER) | {"queueing_max_us": 7.0}
    assert router_table(table)[2] == f"| bed-figure8 | 0 of 5 |{' not measured |' * 4}"
    late = dict(zip(ROUTER, (2.0, 30.0, 1400.5, 0.002), strict=True))
    new = [row | late | {"late_p50_us": row["seed"]} for row in rows("kernel", {"oracle": 30.0})]
    new[0] |= dict.fromkeys(list(ROUTER)[:3]) | {"stalled_share": 0.5}  # the machine was too busy
    keep(tmp_path, [*new, *rows("ns3", {"oracle": 30.0})])
    assert load(tmp_path).filter(source="ns3")["stalled_share"].null_count() == 5
    (found,) = router_errors(load(tmp_path))
    assert (found["runs"], found["measured"]) == (10, 5)
    assert found["late_p50_us"] == {"median": 3.5, "worst": 5}
    assert router_table(load(tmp_path))[2] == (
        "| bed-figure8 | 5 of 10 | 3.5, at worst 5.0 | 30.0, at worst 30.0 | 1,400.5, at worst 1,400.5 |"
        " 0.20, at worst 50.00 |"
    )
    old.drop("cpu_s").write_parquet(tmp_path / "bed.parquet")
    with pytest.raises(ValueError, match=r"bed\.parquet was made by another version"):
        load(tmp_path)


@pytest.mark.long
@needs_bed
@pytest.mark.slow
def test_a_kernels_flows_are_marked_answer_marks_and_are_moved(tmp_path: Path) -> None:
    """Six short runs: DCTCP keeps L short, and the controls move what they say, of S1 alone.

    How much they move is the machine's, too: where programs get no processor, no queue grows and an agent's
    answers are late. So there are up to three tries.
    """
    asked = load_scenario(path_of("bed-figure8"))
    short: dict[str, Any] = {"seconds": 5.0, "warmup_s": 2.0, "profiles": ["uncoupled"]}
    models = models_by_profile(str(MODELS), tmp_path)
    for seed in (1, 2, 3):
        short["seeds"], output = [seed], tmp_path / str(seed)
        said: list[str] = []
        run = lambda: scenario.run("try", asked.model_copy(update=short), output, said.append, models=models)  # noqa: E731, B023
        table = run()
        if table["moved_share"].filter(table["control"] == "model").item() > 0:
            break
    assert [line.split(", ")[2] for line in said] == [
        *("default", "no_l4s", "last_latency", "oracle", "model", "random")
    ]
    by = {row["control"]: row for row in table.iter_rows(named=True)}
    assert by["default"]["moved_share"] == by["no_l4s"]["moved_share"] == 0
    shares = {control: by[control]["moved_share"] for control in ("oracle", "last_latency", "model")}
    assert all(0 < share < 1 for share in shares.values()), shares
    assert by["random"]["moved_share"] == pytest.approx(by["model"]["moved_share"], abs=0.15)
    assert by["random"]["share_of"] == "model"
    assert by["model"]["artifact"] == models["uncoupled"].content
    assert by["model"]["unforeseen_share"] < 0.5
    assert all(row["s1_goodput_bps"] > 1e6 and row["rtt_p50_us"] >= 40_000 for row in by.values())
    for row in by.values():
        assert 0 <= row["stalled_share"] <= 1
        late = [row[name] for name in ROUTER if name != "stalled_share"]
        assert late == [None] * 3 or 0 <= late[0] <= late[1] <= late[2]  # none: the machine is too busy
    assert run().equals(table)
    assert len(said) == 6  # nothing was run again
    other = {"uncoupled": replace(models["uncoupled"], content="0" * 64)}
    scenario.run(
        "try", asked.model_copy(update=short | {"controls": ["model"]}), output, said.append, models=other
    )
    assert len(said) == 7  # by another model
    assert DCTCP not in CONTROLS.read_text().split()


OWNERS = {
    "figure8": """
from swiftqueue.testbed.host import scenario
from swiftqueue.laboratory.scenarios.files import load, path_of
asked = load(path_of("bed-figure8")).model_copy(update={"seconds": 60.0, "seeds": [1]})
scenario.run("try", asked, folder, print)
""",
    "selfcheck": """
from swiftqueue.testbed.host.selfcheck import selfcheck
selfcheck(20, 60)
""",
}
KILLED = [("figure8", 1), ("figure8", 3), ("figure8", 6), ("figure8", 7)]  # from the holder alone to all
KILLED += [("selfcheck", 1), ("selfcheck", 2)]


@pytest.mark.long
@needs_bed
@pytest.mark.slow
@pytest.mark.parametrize(("run", "programs"), KILLED)
def test_nothing_stays_of_a_run_that_is_killed(
    tmp_path: Path, project: Path, run: str, programs: int
) -> None:
    check_nothing_stays(OWNERS[run], programs, {DCTCP}, tmp_path, project)


@needs_bed
def test_nothing_stays_of_dctcp_when_its_holder_is_killed() -> None:
    command = [str(HOLDER), "hold", str(DCTCP_OBJECT), DCTCP]
    gone = lambda: DCTCP not in CONTROLS.read_text().split()  # noqa: E731
    wait_until(gone, "another bed runs")  # names are the whole machine's
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert json.loads(holder.stdout.readline())["control"] == DCTCP
        assert DCTCP in CONTROLS.read_text().split()
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (second.returncode, second.stderr) == (1, "sq_dctcp: somebody else has it, or its flows do\n")
        holder.send_signal(signal.SIGKILL)
    wait_until(gone, "the congestion control is still there")


@needs_bed
def test_bad_rules_and_scenarios_are_one_line() -> None:
    for rule, line in (
        ({"rule-port": 0}, "--rule-port 0: must be"),
        ({"rule-port": PORT, "move-share": 2}, "--move-share 2: must be"),
    ):
        with pytest.raises(RuntimeError, match=line), Bed(rate_mbps=10, queue=NO_AQM, rule=rule):
            pass
    for words, line in (
        ("figure8 --traffic tcp", "--traffic: not an option of figure8"),
        ("figure8 --rate-mbps 40", "--rate-mbps: not an option of figure8"),  # its default, but asked for
        ("--artifact x", "--artifact: not an option of a run without a scenario"),
        ("figure9", "scenario figure9: the bed has figure8"),
        ("--send-mbps 0", "--send-mbps 0: must be above 0, and finite"),
        ("--traffic tcp --send-mbps 5", "--send-mbps: of UDP; a TCP connection sends"),
        *(
            (f"{what} --seconds {seconds}", f"--seconds {seconds}: must be above 0, and finite")
            for what, seconds in product(("figure8", "--traffic tcp", ""), ("nan", "0", "inf"))
        ),
    ):
        said = CliRunner().invoke(app, ["bed", "run", *words.split()])
        assert said.exit_code != 0
        assert line in f"{said.exception} {said.output}"
    for words in ("--seconds nan", "--seconds 0.5", "--rates nan", "--rates 20,inf"):
        said = CliRunner().invoke(app, ["bed", "selfcheck", *words.split()])
        assert words in str(said.exception)
        assert "rates above 0, a second at least; finite" in str(said.exception)
    table = pl.DataFrame(schema=SCHEMA)
    assert agreement(table) == agreement(table.clear())
