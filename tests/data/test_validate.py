"""Stage `validate` passes sound tables, and names each kind of damage with its expectation and rows."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_world import bottleneck_table, write_table

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.events.event_stream import INPUTS, replay_events
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.quality.distribution_shift import (
    SAMPLE,
    population_stability,
    sample_inputs,
    slice_shifts,
)
from swiftqueue.feature_store.quality.expectations import (
    Failure,
    Validation,
    inputs_check,
    packets_check,
    query_frame,
    shift_check,
)
from swiftqueue.models.forecasters.traces import about, read_traces
from swiftqueue.models.sharp import PAPERS
from swiftqueue.pipelines.split import SplitParams, split
from swiftqueue.pipelines.split import main as split_main
from swiftqueue.pipelines.stage import StageError
from swiftqueue.pipelines.validate import ValidateParams, validate

LIMITS: dict[str, Any] = {"max_unknown_latency": 0.1, "max_latency_s": 10, "max_shift_psi": 4.0}
CHECKED = ValidateParams(**LIMITS)
Damage = Callable[[pl.DataFrame], pl.DataFrame]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with packets of two traces, and their division."""
    folder = tmp_path_factory.mktemp("sound")
    for name, seed in (("a", 1), ("b", 2)):
        write_table(folder / "packets", bottleneck_table(name, 45, packets_per_s=200, seed=seed))
    divide(folder, "small")
    return folder


def divide(folder: Path, protocol: str) -> None:
    divided = split(SplitParams(protocol=protocol), folder / "packets")
    (folder / "split.json").write_text(json.dumps(divided))


@settings(max_examples=30)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_population_stability_is_never_negative(training: list[float], later: list[float]) -> None:
    assert population_stability(np.array(training), np.array(later)) >= 0
    assert population_stability(np.array(training), np.array(training)) == 0


def test_population_stability_tells_sampling_from_change() -> None:
    rng = np.random.default_rng(0)
    training = rng.lognormal(10, 1, 20_000)
    assert population_stability(training, rng.lognormal(10, 1, 5_000)) < 0.02
    assert 0.1 < population_stability(training, rng.lognormal(10.5, 1, 5_000)) < 1
    assert population_stability(training, training[:5_000] * 1000) > 8  # ns for us
    flags = np.array([0.0] * 99 + [1.0])
    assert population_stability(flags, 1 - flags) > 4


def test_shifts_are_of_the_test_slices_against_the_training_slice() -> None:
    sizes = np.repeat([1500.0, 1500.0, 60.0], 80).astype(np.float32)
    latency = np.full(240, np.nan, np.float32)
    features = pl.DataFrame({"size_bytes": sizes, "latency_us": latency, "flow_age_us": sizes})
    shifts = slice_shifts("t", features, [0, 10], [[10, 20], [20, 30]])
    assert shifts["feature"].to_list() == ["size_bytes"]  # no latency known; ages grow by themselves
    assert shifts["worst_round"].to_list() == [2]
    assert shifts["psi"][0] > 2
    assert slice_shifts("t", features, [0, 10], [[10, 20]])["psi"].to_list() == [0]


def test_what_stands_for_a_whole_slice_is_no_shift() -> None:
    """The least latency since the log began only falls; on the default traces it crossed the limit alone."""
    falls = np.repeat([9e3, 8e3, 7e3], 80).astype(np.float32)
    least = {f"min_latency{scope}_us": falls for scope in ("", "_queue", "_flow", "_receiver")}
    assert set(least) < {feature.name for feature in EVENTS.features}
    shifts = slice_shifts("t", pl.DataFrame({**least, "ack_rate": falls}), [0, 10], [[10, 20], [20, 30]])
    assert shifts["feature"].to_list() == ["ack_rate"]


@pytest.mark.parametrize("batches", [3, 300, 1000, 4394, 5390, 9046, 10_000, 100_000])
def test_a_sample_of_inputs_has_each_place_of_a_batch_alike(batches: int) -> None:
    """`gap_us` is of the first place only: a sample of other places than before looked like a drift."""
    places_BHF = np.tile(np.arange(HORIZON, dtype=np.float32)[:, None], (batches, 1, 1))
    counts = np.unique(sample_inputs(places_BHF), return_counts=True)[1]
    assert len(counts) == HORIZON
    assert np.ptp(counts) <= 1
    assert counts.sum() <= max(2 * SAMPLE, HORIZON)


def test_a_failure_is_one_line() -> None:
    rows = ("trace a packet 3 (x = 1)", "trace a packet 9 (x = 2)")
    failure = Failure("packets-a", "expect_x", "x", 7, rows, "")
    assert str(failure) == (
        "packets-a: expect_x of x failed in 7 rows: "
        "trace a packet 3 (x = 1); trace a packet 9 (x = 2) and 5 more"
    )


@pytest.mark.long
@pytest.mark.slow
def test_sound_tables_meet_all_expectations(sound: Path) -> None:
    validation = checked(sound)
    assert validation.failures == []
    assert sorted(validation.report) == [
        "distribution-shift",
        "inputs-a",
        "inputs-b",
        "packets-a",
        "packets-b",
        "schema",
    ]


def checked(folder: Path) -> Validation:
    return validate(folder / "packets", folder / "split.json", CHECKED)


def alone(sound: Path, folder: Path, damage: Damage = lambda table: table) -> None:
    """Put the packets of trace `a` only under `folder`, damaged, and divided as the sound one."""
    table = pl.read_parquet(sound / "packets" / "trace=a" / "minute=0" / "part-0.parquet")
    write_table(folder / "packets", damage(table))
    divided = json.loads((sound / "split.json").read_text())
    del divided["traces"]["b"]
    (folder / "split.json").write_text(json.dumps(divided))


def at(packets: list[int], **columns: pl.Expr) -> Damage:
    where = pl.col("packet").is_in(packets)
    return lambda table: table.with_columns(
        **{name: pl.when(where).then(value).otherwise(name) for name, value in columns.items()}
    ).cast({name: table.schema[name] for name in columns})


HARMS: dict[str, list[tuple[Damage, str]]] = {  # damage to the packet table, and the line about it
    "values": [
        (
            at([5, 9], acked_ns=pl.col("sent_ns") - 1),
            "null of ack_after_send_ns below 0 failed in 2 rows: trace a packet 5 .*trace a packet 9",
        ),
        (
            at([7], queue=pl.lit("l4s"), ecn=pl.lit(0)),
            "to_be_equal of queue and queue_by_ecn failed in . rows: .*trace a packet 7",
        ),
        (at([8], ecn=pl.lit(4)), "to_be_in_set of ecn failed in 1 rows: trace a packet 8"),
        (
            at([3], size_bytes=pl.lit(0)),
            "to_be_null of size_bytes outside 1 to 1048576 failed in 1 rows: trace a packet 3",
        ),
        (
            at(
                [4],
                latency_us=pl.lit(11e6),
                acked_ns=pl.col("sent_ns") + 11 * 10**9,
                retransmitted=pl.lit(False),
            ),
            r"to_be_null of latency_us outside 0 to \d+ failed in 1 rows: trace a packet 4",
        ),
        (
            at([6], retransmitted=pl.lit(True), latency_us=pl.lit(1e4), acked_ns=pl.col("sent_ns") + 10**7),
            "to_be_null of latency_retransmitted_us failed in 1 rows: trace a packet 6",
        ),
        (at([2], flow_id=pl.lit(None)), "not_be_null of flow_id failed in 1 rows: trace a packet 2"),
    ],
    "order": [
        (
            at([100], sent_ns=pl.col("sent_ns") - 10**9),
            "increasing of sent_ns failed in . rows: .*trace a packet 100",
        ),
        (
            at([5], latency_us=pl.lit(np.nan), acked_ns=pl.col("sent_ns"), retransmitted=pl.lit(False)),
            r"to_be_null of latency_us outside 0 to \d+ failed in 1 rows: trace a packet 5",
        ),
        (
            lambda t: t.with_columns(latency_us=pl.when(pl.col("packet") % 4 > 0).then("latency_us")),
            r"non_null_values_to_be_between of latency_us failed: observed 0\.7\d+, asked min_value 0.9",
        ),
    ],
    "twice": [
        (
            lambda t: pl.concat([t[:11], t[10:]]),
            "increasing of packet failed in 1 rows: trace a packet 10",
        )
    ],
    "short": [(lambda t: t[:7], r"row_count_to_be_between failed: observed 7, asked min_value 8")],
    "schema": [
        (
            lambda t: t.with_columns(pl.col("size_bytes").cast(pl.Int64)),
            r"schema: .* rows: trace a column size_bytes \(found = Int64, expected = Int32",
        ),
        (lambda t: t.drop("lost"), r"column lost \(found = missing"),
    ],
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("harms", HARMS.values(), ids=HARMS)
def test_damage_to_the_packet_table_is_named(
    sound: Path, tmp_path: Path, harms: list[tuple[Damage, str]]
) -> None:
    alone(sound, tmp_path, lambda table: functools.reduce(lambda t, harm: harm[0](t), harms, table))
    failures = [str(f) for f in checked(tmp_path).failures]
    for _, message in harms:
        assert any(re.search(message, f) for f in failures), (message, failures)
    assert all("\n" not in f for f in failures)


@pytest.mark.slow
def test_damage_to_the_inputs_is_named(sound: Path) -> None:
    """Each fault, which no packet table would give, is in an event's row and in a query's."""
    packets = pl.read_parquet(sound / "packets" / "trace=a" / "minute=0" / "part-0.parquet")
    events = replay_events(packets)
    queries = query_frame("a", packets, events)
    for column, packet, value in (("in_flight", 16, np.nan), ("gap_us", 16, np.inf), ("queue_l4s", 17, 0.5)):
        queries = at([packet], **{column: pl.lit(value)})(queries)
        events.x_EF[packet, [each.name for each in INPUTS].index(column)] = value
    late = pl.when(pl.col("packet") > 6500)
    queries = queries.with_columns(
        ack_silence_us=late.then(pl.col("ack_silence_us") * 1e6 + 1e6).otherwise("ack_silence_us")
    )
    slices = json.loads((sound / "split.json").read_text())["traces"]["a"]
    shifts = slice_shifts("a", queries, slices["pretrain"], [each["test"] for each in slices["rounds"]])
    validation = Validation()
    for check in (inputs_check("a", events, queries), shift_check(shifts, 4.0)):
        validation.run(check)
    failures = [str(f) for f in validation.failures]
    messages = (
        ("inputs-a: .* of missing failed in 2 rows", *of_both("in_flight", 16)),
        ("inputs-a: .* of wrong failed in 4 rows", *of_both("gap_us", 16), *of_both("queue_l4s", 17)),
        ("distribution-shift: .* of psi failed in 1 rows: trace a feature ack_silence_us worst_round 1",),
    )
    assert len(failures) == len(messages), failures
    for parts in messages:
        assert any(all(re.search(part, f) for part in parts) for f in failures), failures


def of_both(column: str, packet: int) -> tuple[str, str]:
    """Return how a message names an input in the row of some event, and in the row of a packet's query."""
    return f"rows events input {column} packet ", f"rows queries input {column} packet {packet}"


def assert_offline(page: str) -> None:
    """Check that the page loads no script, style or picture from another file or host."""
    assert not re.findall(r"""<(?:script|link|img|iframe)\b|\b(?:src|srcset)=|url\(|@import""", page)
    assert not re.findall(r'href="(?!#)', page)
    assert "<style>" in page


@pytest.mark.slow
def test_the_data_docs_name_run_and_table_and_need_no_net(tmp_path: Path) -> None:
    """Great Expectations' own pages ask seven hosts for style, icons and the index's table."""
    validation = Validation()
    validation.run(packets_check("office<1>", bottleneck_table("a", 5, packets_per_s=100), 0.1, 0.0301))
    validation.write_docs(tmp_path / "docs", "wide & narrow")
    page = (tmp_path / "docs" / "index.html").read_text()
    assert "<h1>Validation of wide &amp; narrow</h1>" in page
    assert '<h2 id="packets-office&lt;1&gt;">packets-office&lt;1&gt;</h2>' in page
    assert "Failed expectations: 1." in page
    too_late = (
        r"outside 0 to 30100</td><td>column values to be null</td><td></td><td>\d+ rows: trace a packet \d+ "
    )
    assert re.search(too_late, page)
    assert_offline(page)


def run_stage(cwd: Path, limits: dict[str, Any], project: Path) -> Any:
    (cwd / "params.yaml").write_text(yaml.safe_dump({"validate": limits}))
    paths = ["--packets", "packets", "--split", "split.json", "--output", "validation"]
    command = [sys.executable, "-m", "swiftqueue.pipelines.validate", "--params", "params.yaml", *paths]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(project), "SWIFTQUEUE_STUDY": "office"},
    )


@pytest.mark.long
@pytest.mark.slow
def test_the_stage_stops_the_pipeline_and_writes_the_docs(sound: Path, tmp_path: Path, project: Path) -> None:
    alone(sound, tmp_path)
    done = run_stage(tmp_path, LIMITS, project)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "validation" / "report.json").read_text())
    assert report["success"] is True
    page = (tmp_path / "validation" / "docs" / "index.html").read_text()
    assert "Validation of office" in page  # the run
    assert "All expectations are" in page
    for table in ("schema", "packets-a", "inputs-a", "distribution-shift"):
        assert f'<h2 id="{table}">' in page
    assert_offline(page)
    assert not (tmp_path / "var").exists()

    done = run_stage(tmp_path, {**LIMITS, "max_latency_s": 0.03}, project)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "see var/validation/docs/index.html" in done.stderr
    assert (
        "packets-a: expect_column_values_to_be_null of latency_us outside 0 to 30000 failed in" in done.stderr
    )
    assert "trace a packet" in done.stderr
    assert "max_shift_psi" not in done.stderr
    failed = json.loads((tmp_path / "var" / "validation" / "report.json").read_text())
    assert failed["success"] is False
    page = (tmp_path / "var" / "validation" / "docs" / "index.html").read_text()
    assert "Failed expectations: 1." in page
    assert re.search(r'class="failed".*latency_us outside 0 to 30000.*rows: trace a packet', page, re.DOTALL)
    assert_offline(page)
    # The failed validation does not overwrite the one that passed.
    assert json.loads((tmp_path / "validation" / "report.json").read_text())["success"] is True

    done = run_stage(tmp_path, {**LIMITS, "max_shift_psi": 0.01}, project)
    assert done.returncode == 1
    assert (
        "than validate.max_shift_psi (0.01) allows; short captures do: raise it in params.yaml" in done.stderr
    )


def test_a_division_of_other_traces_is_refused(sound: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "packets", bottleneck_table("c", 1))
    line = r"packet tables are of c, and .*split\.json divides a, b; run the stage `split` again"
    with pytest.raises(StageError, match=line):
        validate(tmp_path / "packets", sound / "split.json", CHECKED)
    with pytest.raises(StageError, match=r"divides none; run the stage `split` again"):
        validate(sound / "packets", tmp_path / "none.json", CHECKED)


@pytest.mark.slow
def test_real_captures_meet_the_default_limits(captures: Path, project: Path, tmp_path: Path) -> None:
    names = ["wifi-l4s/prague_dualpi2_wifi.pcap.gz", "ndt/ndt-5BA77.pcap.gz"]  # an easy one and the worst
    packets_dir = tmp_path / "packets"
    for name in names:
        extract_trace(ExtractJob(captures / name, Path(name).name.split(".")[0]), packets_dir)
    params = yaml.safe_load((project / "params.yaml").read_text())
    divide(tmp_path, "short")
    limits = ValidateParams(**params["validate"])
    validation = validate(packets_dir, tmp_path / "split.json", limits)
    assert [str(f) for f in validation.failures] == []
    assert len(validation.report) == 6


# The stage `split`


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the packet tables of two traces of ten seconds."""
    folder = tmp_path_factory.mktemp("short") / "packets"
    for name, seed in (("a", 1), ("b", 2)):
        write_table(folder, bottleneck_table(name, 10, seed=seed))
    return folder


def test_a_division_that_cannot_be_is_named(short: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"split\.protocol is 'long'; it must be one of short, small, paper"):
        SplitParams(protocol="long")
    with pytest.raises(
        ValueError, match=r"trace a lasts .* s, and protocol 'small' needs .*; protocol 'short'"
    ):
        split(SplitParams(protocol="small"), short)
    with pytest.raises(StageError, match="run the stage `extract` first"):
        split(SplitParams(protocol="small"), tmp_path / "none")
    with pytest.raises(StageError, match="no packet table of gone under"):
        split(SplitParams(protocol="short"), short, wanted=["a", "gone"])
    with pytest.raises(StageError, match="so nothing is tested"):
        split(SplitParams(protocol="short"), short, {"a": "teach", "b": "teach"})


def test_a_trace_may_have_a_protocol_of_its_own(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "packets", bottleneck_table("long", 40, packets_per_s=200, seed=3))
    write_table(tmp_path / "packets", bottleneck_table("left", 40, packets_per_s=200, seed=4))
    shutil.copytree(short, tmp_path / "packets", dirs_exist_ok=True)
    entry: dict[str, Any] = {"file": "x.pcap", "sender": None, "latency": "acks"}
    traces = {"long": entry, "a": entry | {"protocol": "short"}, "b": entry | {"protocol": "short"}}
    params = {"split": {"protocol": "small"}, "extract": {"traces": traces}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    split_main(tmp_path / "params.yaml", tmp_path / "packets", tmp_path / "split.json")
    assert "rounds of short" in (said := capsys.readouterr().out)
    assert "s, 1 rounds of small" in said
    found = read_traces(tmp_path / "packets", tmp_path / "split.json", PAPERS)
    assert sorted(found) == ["a", "b", "long"]  # DVC leaves the table of one that is not named any more
    assert about(found) == {"name": "short+small"}
    assert found["a"].slices.protocol.name == "short"
