"""Stage `windows`: packet tables to windows, targets, features per packet, and the split by time.

Shapes: B batches (decisions), W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from feature_store import windows as fw
from feature_store.schema import scan_packets, traces_in
from models.protocol import Protocol, Slices, divide, protocol_named
from pipelines.stage import StageError, atomic_dir, load_params, stage_main

PARAMETERS = {"protocol", "visibility", "tokens", "tokens_min", "tokens_max"}
COLUMNS = (
    "packet",
    "sent_ns",
    "flow_id",
    "receiver_id",
    "size_bytes",
    "queue",
    "acked_ns",
    "latency_us",
)  # of the packet table: all that a window needs
CONSTANT = {"age_us", "latency_us", "latency_visible", "candidate"}  # inputs: for candidates 0, 0, 0, 1


def read_trace(packets_dir: Path, trace: str) -> pl.DataFrame:
    """Return one trace's packet table, as far as windows need it."""
    return scan_packets(packets_dir, trace).select(COLUMNS).collect()


def measure(packets: pl.DataFrame, protocol: Protocol, trace: str) -> tuple[float, Slices]:
    """Return a trace's bandwidth-delay product in packets, and its division by time.

    Raises:
        ValueError: the trace has no latencies, or is too short for the protocol; the line names it.
    """
    try:
        bdp = fw.bdp_packets(packets)
    except ValueError as error:
        raise ValueError(f"trace {trace}: {error}") from error
    return bdp, divide(fw.targets(packets).decision_ns_B, protocol, trace)


def candidate_features(
    trace: str, packets: pl.DataFrame, first_batch: int, x_BWF: npt.NDArray[np.float32]
) -> pl.DataFrame:
    """Return one row per packet decided in `x_BWF`: its candidate token's features and what came of it.

    Inputs that are constant for candidates are left out, so `latency_us` is the target here.
    """
    tokens = np.ascontiguousarray(x_BWF[:, -fw.HORIZON :].reshape(-1, len(fw.FEATURES)).T)
    rows = packets[first_batch * fw.HORIZON : first_batch * fw.HORIZON + tokens.shape[1]]
    return pl.DataFrame(
        {
            "trace": pl.Series([trace] * rows.height, dtype=pl.String),
            "packet": rows["packet"],
            "horizon": (rows["packet"] % fw.HORIZON).cast(pl.UInt8),
            "decision_ns": np.repeat(rows["sent_ns"].to_numpy()[:: fw.HORIZON], fw.HORIZON),
            **{f.name: tokens[i] for i, f in enumerate(fw.FEATURES) if f.name not in CONSTANT},
            "latency_us": rows["latency_us"],
            "acked_ns": rows["acked_ns"],
            "queue": rows["queue"],
            "flow_id": rows["flow_id"],
        }
    )


@contextmanager
def npy_rows(path: Path, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Open a float32 .npy file for its rows to be appended.

    Plain writes, not a memory map: on a full disk they raise an error instead of killing the process.

    Raises:
        OSError: a write failed; the message names the file.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_trace(
    folder: Path,
    trace: str,
    packets: pl.DataFrame,
    tokens: int,
    visibilities: list[str],
    advance: Callable[[int], None],
) -> None:
    """Write one trace's windows, targets and features; `advance` is told of windows written."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    targets = fw.targets(packets)
    np.save(folder / "y_us.npy", targets.y_BH)
    np.save(folder / "y_acked_ns.npy", targets.y_acked_ns_BH)
    np.save(folder / "decision_ns.npy", targets.decision_ns_B)
    np.save(folder / "first_packet.npy", targets.first_packet_B)

    shape = (fw.batches_in(packets), tokens, len(fw.FEATURES))
    empty_BWF = np.empty((0, *shape[1:]), np.float32)
    schema = candidate_features(trace, packets, 0, empty_BWF).to_arrow().schema
    with pq.ParquetWriter(folder / "features.parquet", schema, compression="zstd") as features:
        for visibility in visibilities:
            done = 0
            with npy_rows(folder / f"x_{visibility}.npy", shape) as file:
                for x_BWF in fw.iter_windows(packets, tokens, visibility):
                    file.write(x_BWF.data)
                    if visibility == "acked":
                        features.write_table(candidate_features(trace, packets, done, x_BWF).to_arrow())
                    done += len(x_BWF)
                    advance(len(x_BWF))


def make_windows(packets_dir: Path, output: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Write the windows of every trace under `packets_dir` into `output`; return meta.json's content.

    Raises:
        StageError: there is no packet table, or a parameter has no meaning.
        ValueError: a trace cannot be windowed under these parameters; the line names it.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    protocol = protocol_named(params["protocol"])
    visibilities = checked_visibilities(params["visibility"])
    traces = traces_in(packets_dir)
    if not traces:
        raise StageError(f"no packet tables under {packets_dir}; run the stage `extract` first")

    measured = {t: measure(read_trace(packets_dir, t), protocol, t) for t in traces}
    tokens = window_tokens(params, max(bdp for bdp, _ in measured.values()))
    meta: dict[str, Any] = {
        "schema_hash": fw.schema_hash(),
        "tokens": tokens,
        "horizon": fw.HORIZON,
        "features": [vars(f) for f in fw.FEATURES],
        "protocol": vars(protocol),
        "visibility": visibilities,
        "traces": {},
    }
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for trace in traces:
            packets = read_trace(packets_dir, trace)
            windows = fw.batches_in(packets)
            task = progress.add_task(f"windows of {trace}", total=windows * len(visibilities))
            write_trace(
                output / trace,
                trace,
                packets,
                tokens,
                visibilities,
                lambda n, task=task: progress.advance(task, n),  # type: ignore[misc]
            )
            bdp, slices = measured[trace]
            meta["traces"][trace] = {"windows": windows, "bdp_packets": bdp, **slices.as_json()}
    (output / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta


def checked_visibilities(value: Any) -> list[str]:
    """Return the list of visibilities, or raise StageError."""
    if not isinstance(value, list) or "acked" not in value or not set(value) <= set(fw.VISIBILITIES):
        raise StageError(f"windows.visibility = {value!r}: must be [acked] or [acked, previous]")
    return list(dict.fromkeys(value))


def window_tokens(params: dict[str, Any], bdp: float) -> int:
    """Return W for all traces: as given, or sized for the largest bandwidth-delay product among them."""
    tokens, least, most = params["tokens"], params["tokens_min"], params["tokens_max"]
    if tokens == "auto":
        if not isinstance(least, int) or not isinstance(most, int) or least > most:
            raise StageError(f"windows.tokens_min = {least!r}, tokens_max = {most!r}: must be a range")
        return fw.tokens_for(bdp, least, most)
    if not isinstance(tokens, int):
        raise StageError(f"windows.tokens = {tokens!r}: must be `auto` or a multiple of 8")
    return fw.check_tokens(tokens)


def main() -> None:
    """Read packet tables, write windows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--packets", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with stage_main("windows"):
        params = load_params(args.params, "windows", PARAMETERS)
        with atomic_dir(args.output) as partial:
            meta = make_windows(args.packets, partial, params)
    for name, trace in meta["traces"].items():
        print(
            f"{name}: {trace['windows']} windows of {meta['tokens']} tokens, {trace['duration_s']:.1f} s, "
            f"BDP {trace['bdp_packets']:.0f} packets, {len(trace['rounds'])} rounds of {params['protocol']}"
        )


if __name__ == "__main__":
    main()
