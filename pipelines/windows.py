"""Stage `windows`: packet tables to windows, targets, and features per packet.

Which rows a window has, those of `window.h` or of `event_window.h`, the network says (`architecture.name`).

Shapes: B batches (decisions), W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import AfterValidator, Field, model_validator

from feature_store.atomic import new_folder
from feature_store.events import windows as fw
from feature_store.events.definition import WINDOW, Definition
from feature_store.packets.schema import scan_packets, traces_in
from models.networks.loop_network import chosen
from models.section import Section, read, read_all
from models.training.protocol import OF_A_TRACE, protocol_named
from pipelines.split import SplitParams, own_protocols
from pipelines.stage import Given, StageError, run_stage

Visibility = Annotated[str, Field(json_schema_extra={"enum": list(fw.VISIBILITIES)})]
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


def _visibilities(given: list[str]) -> list[str]:
    if "acked" not in given or not set(given) <= set(fw.VISIBILITIES):
        raise ValueError("it must be [acked] or [acked, previous]")
    return list(dict.fromkeys(given))


class WindowsParams(Section):
    """What the model sees at a decision."""

    section: ClassVar = "windows"
    visibility: Annotated[list[Visibility], AfterValidator(_visibilities)]
    """Which latencies a window shows: what was acknowledged, or every earlier packet's (the paper's), too: no
    stage reads those windows, and they take as much space again."""
    tokens: Literal["auto"] | Annotated[int, Field(gt=8, le=4096, multiple_of=8)]
    """Tokens of a window; `auto` sizes it for the largest bandwidth-delay product of a training slice. A
    network over events says itself how many it has."""
    tokens_min: Annotated[int, Field(ge=16, le=4096, multiple_of=8)]
    """The least that `auto` chooses."""
    tokens_max: Annotated[int, Field(ge=16, le=4096, multiple_of=8)]
    """The most that `auto` chooses."""

    @model_validator(mode="after")
    def _a_range(self) -> WindowsParams:
        if self.tokens_min > self.tokens_max:
            raise ValueError(
                f"windows.tokens_min is {self.tokens_min}; it must not be above "
                f"windows.tokens_max, which is {self.tokens_max}"
            )
        return self


def read_trace(packets_dir: Path, trace: str) -> pl.DataFrame:
    """Return one trace's packet table, as far as windows need it."""
    return scan_packets(packets_dir, trace).select(COLUMNS).collect()


def measure(packets: pl.DataFrame, trace: str, pretrain_s: float = math.inf) -> float:
    """Return a trace's bandwidth-delay product in packets, as known when its training slice ended.

    Raises:
        ValueError: no latency is known there; the line names the trace.
    """
    if packets.height and math.isfinite(pretrain_s):
        end_ns = int(packets["sent_ns"][0]) + round(pretrain_s * 1e9)
        known = pl.col("acked_ns") <= end_ns
        packets = packets.filter(pl.col("sent_ns") < end_ns).with_columns(
            acked_ns=pl.when(known).then("acked_ns"), latency_us=pl.when(known).then("latency_us")
        )
    try:
        return fw.bdp_packets(packets)
    except ValueError:
        raise ValueError(f"trace {trace}: no latency is known in the time to train on") from None


def candidate_features(
    trace: str,
    packets: pl.DataFrame,
    first_batch: int,
    x_BWF: npt.NDArray[np.float32],
    definition: Definition = WINDOW,
) -> pl.DataFrame:
    """Return one row per packet decided in `x_BWF`: its candidate token's features and what came of it.

    Inputs that are constant for candidates are left out, so `latency_us` is the target here.
    """
    inputs = definition.features
    tokens = np.ascontiguousarray(x_BWF[:, -fw.HORIZON :].reshape(-1, len(inputs)).T)
    rows = packets[first_batch * fw.HORIZON : first_batch * fw.HORIZON + tokens.shape[1]]
    return pl.DataFrame(
        {
            "trace": pl.Series([trace] * rows.height, dtype=pl.String),
            "packet": rows["packet"],
            "horizon": (rows["packet"] % fw.HORIZON).cast(pl.UInt8),
            "decision_ns": np.repeat(rows["sent_ns"].to_numpy()[:: fw.HORIZON], fw.HORIZON),
            **{f.name: tokens[i] for i, f in enumerate(inputs) if f.name not in definition.not_of_candidates},
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
    definition: Definition,
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

    shape = (fw.batches_in(packets), tokens, len(definition.features))
    empty_BWF = np.empty((0, *shape[1:]), np.float32)
    schema = candidate_features(trace, packets, 0, empty_BWF, definition).to_arrow().schema
    with pq.ParquetWriter(folder / "features.parquet", schema, compression="zstd") as features:
        for visibility in visibilities:
            done = 0
            with npy_rows(folder / f"x_{visibility}.npy", shape) as file:
                for x_BWF in fw.iter_windows(packets, tokens, visibility, definition=definition):
                    file.write(x_BWF.data)
                    if visibility == "acked":
                        rows = candidate_features(trace, packets, done, x_BWF, definition)
                        features.write_table(rows.to_arrow())
                    done += len(x_BWF)
                    advance(len(x_BWF))


def make_windows(
    packets_dir: Path,
    output: Path,
    params: WindowsParams,
    wanted: Sequence[str] | None = None,
    definition: Definition = WINDOW,
    tokens: int | None = None,
    pretrain_s: Callable[[str], float] = lambda _: math.inf,
) -> dict[str, Any]:
    """Write the windows of the traces under `packets_dir` into `output`; return meta.json's content.

    Of all traces, or of those wanted: DVC leaves the table of one that params.yaml no longer names. With
    `tokens` of so many rows, else of as many as `params` say. `pretrain_s` says how long a trace's training
    slice is: nothing later sizes the windows.

    Raises:
        StageError: there is no packet table.
        ValueError: a trace cannot be windowed under these parameters; the line names it.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    visibilities = params.visibility
    found = traces_in(packets_dir)
    traces = found if wanted is None else sorted(wanted)
    if missing := [trace for trace in traces if trace not in found]:
        raise StageError(
            f"no packet table of {missing[0]} under {packets_dir}; run the stage `extract` first"
        )
    if not traces:
        raise StageError(f"no packet tables under {packets_dir}; run the stage `extract` first")

    bdp = {t: measure(read_trace(packets_dir, t), t, pretrain_s(t)) for t in traces}
    wanted_tokens = tokens or params.tokens
    if wanted_tokens == "auto":
        tokens = fw.tokens_for(max(bdp.values()), params.tokens_min, params.tokens_max)
    else:
        tokens = fw.check_tokens(wanted_tokens)
    meta: dict[str, Any] = {
        "schema_hash": definition.schema_hash,
        "tokens": tokens,
        "horizon": fw.HORIZON,
        "features": [vars(f) for f in definition.features],
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
                definition,
                lambda n, task=task: progress.advance(task, n),  # type: ignore[misc]
            )
            meta["traces"][trace] = {"windows": windows, "bdp_packets": bdp[trace]}
    (output / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta


def main(params: Given, packets: Given, output: Given) -> None:
    """Read packet tables, write windows."""
    section, network, sections = read(params, WindowsParams), chosen(params), read_all(params)
    protocol, own = read(params, SplitParams).protocol, own_protocols(sections)
    named = (sections.get("extract") or {}).get("traces")
    wanted = list(named) if isinstance(named, dict) else None
    with new_folder(output) as partial:
        meta = make_windows(
            *(packets, partial, section, wanted, network.definition, network.tokens(params)),
            lambda trace: protocol_named(own.get(trace, protocol), OF_A_TRACE).pretrain_s,
        )
    for name, trace in meta["traces"].items():
        print(
            f"{name}: {trace['windows']} windows of {meta['tokens']} tokens, "
            f"BDP {trace['bdp_packets']:.0f} packets"
        )


if __name__ == "__main__":
    run_stage("windows", main)
