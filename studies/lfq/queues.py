"""The published queue traces: `studies/lfq/data/queue-traces.parquet`, as a picture and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from matplotlib.figure import Figure

from swiftqueue.common.atomic import new_file
from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.legend import legend_below
from swiftqueue.laboratory.report.plots import COLOURS as LAB_COLOURS
from swiftqueue.models.scoring.plot_style import INK, grid
from swiftqueue.studies.lfq import traces

FOLDER: Final = Path("studies/lfq/data")
JOIN: Final = "; "  # separator in the scenario's points: rule, TCP, path
RULES: Final = {  # in the table's order: their colours
    "LFQ 10": "#e64980",
    "LFQ 0.01": LAB_COLOURS["random"],
    "FqCoDel": LAB_COLOURS["last_latency"],
    "FIFO": INK,
}
DRAWN_EVERY: Final = 5  # bins of the table's 10 ms in one drawn point, which is the longest queue among them
TICKS: Final = (0, 1, 10, 100, 1000)


def take(output: Path, root: Path = Path()) -> None:
    """Publish the traces of an output folder's runs in the place of those before them.

    Raises:
        ValueError: there are none, or a run did not keep its truth.
    """
    found = traces.of_runs(output)
    with new_file(root / FOLDER / traces.FILE) as partial:
        found.write_parquet(partial, compression="zstd")


def picture(queues: pl.DataFrame) -> Figure:
    """Draw the queue over time under each rule: a column for each path, a row for each TCP."""
    cells = _named(queues)
    paths, tcps = (list(cells[name].unique(maintain_order=True)) for name in ("path", "tcp"))
    figure, axes_by_row = grid(max(1, len(tcps)), max(1, len(paths)), 8.4, 4.6)
    for axes_of_tcp, tcp in zip(axes_by_row, tcps, strict=False):
        for axes, path in zip(axes_of_tcp, paths, strict=True):
            for rule, colour in RULES.items():
                own = cells.filter(tcp=tcp, path=path, rule=rule)
                step = pl.int_range(pl.len()) // DRAWN_EVERY
                drawn = own.group_by(step, maintain_order=True).agg(
                    pl.col("time_s").first(), pl.col("queue_packets").max()
                )
                axes.plot(drawn["time_s"], drawn["queue_packets"], color=colour, linewidth=1, label=rule)
            axes.set_title(f"{tcp}, {path}", fontsize=9)
            axes.set_yscale("symlog", linthresh=1)
            axes.set_yticks(TICKS, map(str, TICKS) if axes is axes_of_tcp[0] else [])
            axes.set(xlim=(0, 5), ylim=(0, 1500))
        axes_of_tcp[0].set_ylabel("packets that wait", fontsize=8)
    for axes in axes_by_row[-1]:
        axes.set_xlabel("s", fontsize=8)
    handles, _ = axes_by_row[0][0].get_legend_handles_labels()
    legend_below(figure, handles, len(RULES))
    return figure


def table(queues: pl.DataFrame) -> list[str]:
    """Return the median and the largest of all 10 ms, by path and TCP, a column for each rule."""
    cells = _named(queues)
    lines = lab.head_of(["path", "TCP", *RULES])
    for (path, tcp), own in cells.group_by("path", "tcp", maintain_order=True):
        texts = []
        for rule in RULES:
            packets = own.filter(rule=rule)["queue_packets"]
            both = (packets.median(), packets.max())
            texts.append("{:.0f} / {}".format(*both) if packets.len() else lab.NONE)
        lines.append(lab.row_of([str(path), str(tcp), *texts]))
    return lines


def _named(queues: pl.DataFrame) -> pl.DataFrame:
    """Return the traces with rule, TCP and path of each; the fastest path and New Reno come first."""
    parts = pl.col("point").str.split(JOIN)
    names = {name: parts.list.get(i) for i, name in enumerate(("rule", "tcp", "path"))}
    rate = pl.col("path").str.extract(r"^(\S+)").cast(pl.Float64)
    order = [pl.col("path").str.ends_with(" 5 ms"), -rate, pl.col("tcp") != "New Reno", pl.col("time_s")]
    return queues.with_columns(**names).sort(order)
