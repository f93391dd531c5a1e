"""Measure how fast a capture becomes a packet table, beside scapy's rdpcap, and in how much memory.

The memory of a long capture: `swiftqueue bench extract --gigabytes 5`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from swiftqueue.benchmarks.rows import Row, interleaved_medians
from swiftqueue.benchmarks.synthetic_capture import SNAP_BYTES, write_capture

PACKETS: Final = 6_000_000
SLICE_PACKETS: Final = 12_000  # packets of the same capture for scapy: about 3 s
CAP_MIB: Final = 1024
EXTRACT: Final = "import sys; from swiftqueue.cli.app import app; app(sys.argv[1:])"
ONE_THREAD: Final = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


def measure(rounds: int, gigabytes: float | None = None) -> list[Row]:
    """Return packets per second of `swiftqueue extract`, the whole command on one core, and of rdpcap.

    With `gigabytes`, return its memory over one capture of that size instead; `rounds` has no effect.
    """
    if gigabytes is not None:
        packets, seconds, peak = extract_in_capped_memory(gigabytes, CAP_MIB)
        name = f"extract, {gigabytes:g} GB, {packets:,} packets in {seconds:.1f} s: peak resident memory"
        return [Row(name, peak / 2**20, CAP_MIB, "cap", (CAP_MIB << 20) / peak, "MiB", 1)]
    with tempfile.TemporaryDirectory() as folder:
        capture, part = Path(folder) / "bench.pcap", Path(folder) / "slice.pcap"
        packets = write_capture(capture, PACKETS)
        sliced = write_capture(part, SLICE_PACKETS)
        ours, scapy = interleaved_medians(
            rounds,
            lambda: packets / extract_seconds(capture, Path(folder) / "tables"),
            lambda: sliced / rdpcap_seconds(part),
        )
    return [
        Row(
            name=f"extract, pcap to Parquet, snaplen {SNAP_BYTES}, one core",
            ours=ours,
            reference=scapy,
            reference_name="scapy rdpcap of the same records",
            ratio=ours / scapy,
            unit="packets/s",
            rounds=rounds,
        )
    ]


def extract_seconds(capture: Path, output: Path) -> float:
    """Time `swiftqueue extract` from start to exit, its process confined to one core."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", EXTRACT, "extract", str(capture), "-o", str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **ONE_THREAD},
        preexec_fn=_one_core,
    )
    return time.perf_counter() - started


def _one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def rdpcap_seconds(capture: Path) -> float:
    """Time scapy's rdpcap alone, its import and start-up left out, on one core."""
    program = (
        "import sys, time; from scapy.all import rdpcap; t = time.perf_counter(); "
        "rdpcap(sys.argv[1]); print(time.perf_counter() - t)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(capture)],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=_one_core,
    )
    return float(done.stdout)


def extract_in_capped_memory(gigabytes: float, cap_mib: int) -> tuple[int, float, int]:
    """Extract a capture of that size in a process that is killed once more than `cap_mib` is resident.

    (A limit on the address space would not do: Polars' allocator reserves much that it never touches.)

    Returns:
        Packets, seconds, and the peak resident memory in bytes.

    Raises:
        RuntimeError: the process grew too large, or failed.

    """
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "long.pcap"
        packets = write_capture(capture, int(gigabytes * 1e9 / 102))  # bytes per packet with its headers
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-c", EXTRACT, "extract", str(capture), "-o", str(Path(folder) / "tables")],
            stdout=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
        )
        peak = 0
        while child.poll() is None:
            peak = max(peak, _peak_resident_bytes(child.pid))
            if peak > cap_mib << 20:
                child.kill()
            time.sleep(0.02)
        if child.returncode:
            raise RuntimeError(
                f"extract of {gigabytes:g} GB under {cap_mib} MiB ended with status {child.returncode} at "
                f"{peak / 2**20:.0f} MiB"
            )
        return packets, time.perf_counter() - started, peak


def _peak_resident_bytes(process: int) -> int:
    """Return the peak resident memory of a process in bytes; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except ProcessLookupError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0
