"""`swiftqueue extract` as a user meets it: its output, its errors, and what it leaves on the disk."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from swiftqueue.benchmarks.extract import extract_in_capped_memory
from swiftqueue.benchmarks.synthetic_capture import write_capture
from swiftqueue.feature_store.packets import extract_many
from swiftqueue.feature_store.packets.extract import ExtractJob
from swiftqueue.feature_store.packets.extract_many import extract_traces, run_extract
from swiftqueue.feature_store.packets.schema import scan_packets

OWN = Path(__file__).parent.parent / "data" / "captures"
KEYS = {
    *("trace", "packets", "data_packets", "latency_known", "retransmitted", "flows", "receivers"),
    *("sharp_changes", "latency_ms", "skipped"),
}


def run(*names: str, output: Path, sender: str | None = None, as_json: bool = False) -> int:
    return run_extract([OWN / n for n in names], output, sender=sender, latency="acks", as_json=as_json)


def tables(output: Path) -> list[str]:
    return sorted(p.name for p in output.iterdir()) if output.exists() else []


def test_json_is_all_that_standard_output_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ethernet_us_le.pcap", "rare_mpls.pcap", output=tmp_path, as_json=True) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert [set(item) for item in printed] == [KEYS, KEYS]
    assert [item["trace"] for item in printed] == ["ethernet_us_le", "rare_mpls"]
    assert set(printed[0]["latency_ms"]) == {"min", "p50", "p90", "p99", "max"}
    assert "decoded by scapy" in err
    assert json.loads((tmp_path / "summary.json").read_text()) == printed
    assert tables(tmp_path) == ["summary.json", "trace=ethernet_us_le", "trace=rare_mpls"]


def test_a_line_per_trace_without_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ethernet_us_le.pcap", "le.pcapng", output=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ethernet_us_le", "le"]


BAD = {
    "broken_empty.pcap": "empty file",
    "broken_not_a_capture.pcap": "not a capture",
    "broken_file_header.pcap": "not a capture",
    "no_tcp.pcap": "no TCP payload",
    "no_payload.pcap": "no TCP payload",
    "no_acks.pcap": "only one direction was captured",
    "missing.pcap": "no such file",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_captures_get_one_clear_line_and_leave_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, output=tmp_path, as_json=True) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == []
    assert len(err.splitlines()) == 1
    assert name in err
    assert BAD[name] in err
    assert tables(tmp_path) == ["summary.json"]


BROKEN = {  # what it says, data packets kept
    "broken_record_header.pcap": ("ends within record 18", "truncated", 7),
    "broken_packet.pcap": ("ends within record 19", "truncated", 8),
    "broken_length.pcap": ("is broken at record 20", "absurd length", 8),
    "broken_block.pcapng": ("is broken at record 19", "absurd length", 8),
}


@pytest.mark.parametrize("name", BROKEN)
def test_complete_packets_of_a_broken_capture_are_kept(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note, reason, packets = BROKEN[name]
    assert run(name, output=tmp_path, as_json=True) == 0
    out, err = capsys.readouterr()
    (summary,) = json.loads(out)
    assert summary["data_packets"] == packets
    assert summary["skipped"][reason] == 1
    assert note in err


def test_a_cut_gzip_file_keeps_its_packets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("broken_gzip.pcap.gz", output=tmp_path, as_json=True) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["data_packets"] > 0
    assert "gzip" in err


def test_a_bad_capture_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("broken_empty.pcap", "raw.pcap", output=tmp_path, as_json=True) == 1
    assert [item["trace"] for item in json.loads(capsys.readouterr().out)] == ["raw"]


@pytest.mark.parametrize(
    ("sender", "says"), [("203.0.113.9", "most comes from 192.0.2.1"), ("here", "is not an IP address")]
)
def test_unknown_sender(sender: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("raw.pcap", output=tmp_path, sender=sender) == 1
    err = capsys.readouterr().err
    assert sender in err
    assert says in err


def test_timestamps_need_timestamps(
    tmp_path: Path, captures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = captures / "ndt" / "ndt-363A84.pcap.gz"
    assert run_extract([capture], tmp_path, sender=None, latency="timestamps", as_json=False) == 1
    assert "TCP timestamps" in capsys.readouterr().err


def test_duplicate_trace_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shutil.copy(OWN / "raw.pcap", tmp_path / "a" / "raw.pcapng")
    with pytest.raises(ValueError, match="trace name 'raw'"):
        run_extract(
            [OWN / "raw.pcap", tmp_path / "a" / "raw.pcapng"],
            tmp_path / "o",
            sender=None,
            latency="acks",
            as_json=False,
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", ["office [1]", "a*", ".a", ""])
def test_a_trace_name_that_could_not_be_found_again_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a folder: rename the capture"):
        extract_traces([ExtractJob(OWN / "raw.pcap", name)], tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "o").write_text("")
    with pytest.raises(OSError, match="o"):
        run("raw.pcap", output=tmp_path / "o")


def test_a_failed_run_leaves_the_table_that_was_there(tmp_path: Path) -> None:
    assert run("raw.pcap", output=tmp_path) == 0
    before = scan_packets(tmp_path, "raw").collect()
    (tmp_path / ".trace=raw.partial").mkdir()  # as a killed run leaves it
    extract_traces([ExtractJob(OWN / "no_acks.pcap", "raw")], tmp_path)
    assert scan_packets(tmp_path, "raw").collect().equals(before)
    assert tables(tmp_path) == ["summary.json", "trace=raw"]
    assert run("ipv6.pcap", output=tmp_path) == 0
    assert {s["trace"] for s in json.loads((tmp_path / "summary.json").read_text())} == {"raw", "ipv6"}


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    capture = tmp_path / "long.pcap"
    write_capture(capture, 300_000)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from swiftqueue.cli.app import main; main()",
            "extract",
            str(capture),
            "-o",
            str(tmp_path / "o"),
        ],
        capture_output=True,
        text=True,
        # Writing beyond 100 kB fails as on a full disk (SIGXFSZ is ignored by Python: EFBIG).
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "cannot be written" in done.stderr
    assert tables(tmp_path / "o") in (["summary.json"], [])


@pytest.mark.long
@pytest.mark.slow
def test_memory_does_not_grow_with_the_capture() -> None:
    _, _, short = extract_in_capped_memory(0.1, 500)
    _, _, long = extract_in_capped_memory(0.4, 500)
    assert long < short + (100 << 20)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ray_tasks_give_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("raw.pcap", "ipv6.pcap", "no_acks.pcap", "broken_packet.pcap")
    jobs = [ExtractJob(OWN / name, name.split(".")[0]) for name in names]
    here = extract_traces(jobs, tmp_path / "here")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "the capture ends within record" in said[0]
    monkeypatch.setattr(extract_many, "PARALLEL_FROM_BYTES", 1)
    there = extract_traces(jobs, tmp_path / "there")
    started, *warned = capsys.readouterr().err.splitlines()
    assert started.startswith("extracting 4 traces as Ray tasks")
    assert warned == said
    assert here == there
    a, b = (scan_packets(tmp_path / name).collect() for name in ("here", "there"))
    assert a.equals(b)


KNOCK = """
import os, subprocess, sys
from pathlib import Path
from swiftqueue.feature_store.packets import extract_many

def knock(job, output):
    import ray
    address = ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    tries = (
        subprocess.run(
            [sys.executable, "-m", "swiftqueue.infra.local.ray_head", address],
            env=os.environ | token, capture_output=True, text=True,
        )
        for token in ({}, {"RAY_AUTH_TOKEN": "0" * 64})
    )
    return [(done.returncode, "InvalidAuthToken" in done.stderr) for done in tries], ""

extract_many._attempt_and_said = knock
print(extract_many._with_ray([extract_many.ExtractJob(Path("a"), "a")], Path("o")))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_ray_of_its_own_refuses_a_stranger(project: Path, tmp_path: Path) -> None:
    """Nothing in its environment asks for a token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["SWIFTQUEUE_STATE"] = str(tmp_path)
    command = [sys.executable, "-c", KNOCK]
    done = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == str([[(0, False), (1, True)]])


@pytest.mark.slow
def test_the_stage_writes_what_the_command_writes(tmp_path: Path, project: Path) -> None:
    stage = [sys.executable, "-m", "swiftqueue.pipelines.extract", "--output", str(tmp_path / "packets")]
    stage += ["--trace", "office", "--sender", "None", "--latency", "acks", "--file"]
    subprocess.run([*stage, str(OWN / "raw.pcap")], check=True, cwd=project, capture_output=True)
    table = scan_packets(tmp_path / "packets", "office").collect()
    assert run("raw.pcap", output=tmp_path / "o") == 0
    assert table.drop("trace").equals(scan_packets(tmp_path / "o", "raw").collect().drop("trace"))
    failed = subprocess.run([*stage, "gone.pcap"], cwd=project, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "gone.pcap" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert len(scan_packets(tmp_path / "packets", "office").collect()) == 8  # the table before it


@pytest.mark.slow
def test_a_minute_is_a_folder(tmp_path: Path) -> None:
    capture = tmp_path / "minutes.pcap"
    write_capture(capture, 3 * 760_000)  # 61 s
    (summary,) = extract_traces([ExtractJob(capture, "minutes")], tmp_path / "o")
    assert isinstance(summary, dict)
    folders = sorted(p.name for p in (tmp_path / "o" / "trace=minutes").iterdir())
    assert folders == ["minute=0", "minute=1"]
    rows = scan_packets(tmp_path / "o").select(pl.col("packet"), pl.col("sent_ns")).collect()
    assert rows["packet"].equals(pl.int_range(0, summary["data_packets"], eager=True).alias("packet"))
    first = pl.read_parquet(tmp_path / "o" / "trace=minutes" / "minute=1" / "part-0.parquet")
    assert (first["sent_ns"][0] - rows["sent_ns"][0]) // 60_000_000_000 == 1
