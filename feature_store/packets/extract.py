"""Turn captures into packet tables: decode, match data with ACKs, write Parquet, and report.

docs/PACKETS.md states the format and every rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from swiftqueue.common.atomic import new_folder
from swiftqueue.feature_store.packets import pcaplib
from swiftqueue.feature_store.packets.captures import CaptureFile, check_capture, print_note
from swiftqueue.feature_store.packets.rare import address_bytes, address_text
from swiftqueue.feature_store.packets.sender_clock import NoClockError, sender_tick_ns
from swiftqueue.feature_store.packets.table_writer import TraceWriter

SHARP_NS: Final = 20_000_000  # a sharp change: latencies of successive packets differ by 20 ms ...
SHARP_SHARE: Final = 0.20  # ... and by 20 % of the first (SwiftQueue, section 2)
FLUSH_ROWS: Final = 1 << 19  # rows per Parquet part; 20 MB of columns
# An ACK that follows its data sooner has crossed no path; most captures made at the receiver have such ACKs.
NO_PATH_MS: Final = 0.5
FEW_KNOWN: Final = 0.1  # share of known latencies below which a line says why

Summary = dict[str, Any]


@dataclass(frozen=True)
class ExtractJob:
    """A trace to extract."""

    capture: Path
    trace: str  # its name
    sender: str | None = None  # IP address; None: the heaviest sender
    latency: str = "acks"  # source of the latencies, one of LATENCIES


@dataclass(frozen=True)
class _Plan:
    sender: bytes | None  # address; None: the heaviest sender in the first records that have payload
    left_out: bytes = b""  # keys of flows to leave out


class _WrongPlanError(Exception):
    """The error of a pass whose plan was a wrong guess; its argument is the plan to follow."""


def extract_trace(job: ExtractJob, output: Path, progress: Callable[[int], None] = lambda _: None) -> Summary:
    """Write the packet table of one capture under `output` and return its summary.

    A capture is usually read once, on the guess that the heaviest sender of its first records is the heaviest
    of all and that no flow is left out. If the guess is wrong, it is read a second and a third time.

    Raises:
        ValueError: the file is not a capture, gives no latency, or lacks the sender.
        OSError: the capture cannot be read or the table cannot be written.
    """
    check_capture(job.capture)
    if job.latency not in pcaplib.LATENCIES:
        raise ValueError(f"latency {job.latency!r} is unknown; it is one of {', '.join(pcaplib.LATENCIES)}")
    try:
        plan = _Plan(address_bytes(job.sender) if job.sender else None)
    except ValueError:
        raise ValueError(f"sender {job.sender!r} is not an IP address") from None
    while True:
        try:
            return _Pass(job, plan).run(output, progress)
        except _WrongPlanError as wrong:
            plan = wrong.args[0]
        except NoClockError:
            if plan.sender:
                raise
            plan = _Plan(_heaviest(job.capture))  # a guess from the first records


def _heaviest(capture: Path) -> bytes | None:
    traffic = pcaplib.Traffic()
    for segments in CaptureFile(capture):
        traffic.add(segments)
    return traffic.heaviest()


class _Pass:
    """One reading of a capture, from its first byte to the written table."""

    def __init__(self, job: ExtractJob, plan: _Plan) -> None:
        self.job, self.plan = job, plan
        self.traffic = pcaplib.Traffic()
        self.view: pcaplib.SenderView | None = None
        self.matcher: pcaplib.Matcher | None = None
        self.sender = plan.sender

    def run(self, output: Path, progress: Callable[[int], None]) -> Summary:
        """Write the table and return its summary.

        Raises:
            _WrongPlanError: nothing was written.
        """
        capture = CaptureFile(self.job.capture, progress)
        rows = pcaplib.Rows(FLUSH_ROWS)
        with new_folder(output / f"trace={self.job.trace}") as folder:
            writer = TraceWriter(folder, self.job.trace)
            for segments in capture:
                self._push(segments)
                self._drain(rows, writer)
            matcher = self._finished(capture)
            self._drain(rows, writer)
            writer.write(rows)
            stats = matcher.stats()
            if not stats.acks:
                sender = address_text(self.sender or b"")
                raise ValueError(
                    f"{self.job.capture}: no packet of {sender} echoes the timestamp of an ACK, so no "
                    "latency can be known; `--latency acks` is for captures made at the sender"
                    if self.view
                    else f"{self.job.capture}: no ACK comes back to {sender}: only one direction was "
                    "captured, so no latency can be known"
                )
        for note in capture.notes:
            print_note(f"{self.job.trace}: {note}")
        if stats.clock_steps:
            print_note(
                f"{self.job.trace}: clock set back {stats.clock_steps} times; no latency spans such a step"
            )
        summary = self._summary(capture, matcher, writer.rows_written)
        for line in warnings(summary, stats, self.job.latency, matcher.latency_buckets()):
            print_note(f"{self.job.trace}: {line}")
        return summary

    def _push(self, segments: npt.NDArray[np.void]) -> None:
        self.traffic.add(segments)
        if self.matcher is None:
            self.sender = self.sender or self.traffic.heaviest()
            if self.sender is None:
                return
            if self.job.latency == "timestamps":
                tick_ns = sender_tick_ns(self.job.capture, self.sender)
                self.view = pcaplib.SenderView(self.sender, tick_ns=tick_ns)
            self.matcher = pcaplib.Matcher(
                self.sender, self.job.latency, self.view, sharp_ns=SHARP_NS, sharp_share=SHARP_SHARE
            )
            self.matcher.leave_out(self.plan.left_out)
        self.matcher.push(segments)

    def _drain(self, rows: pcaplib.Rows, writer: TraceWriter) -> None:
        while self.matcher is not None and self.matcher.drain(rows):
            writer.write(rows)

    def _finished(self, capture: CaptureFile) -> pcaplib.Matcher:
        """Check at the capture's end that the plan was right and that there is data."""
        if self.traffic.heaviest() is None or self.matcher is None or self.sender is None:
            raise ValueError(f"{self.job.capture}: {_no_payload(capture)}")
        if self.plan.sender is None and (heaviest := self.traffic.heaviest()) != self.sender:
            raise _WrongPlanError(_Plan(heaviest))
        if not self.traffic.sent_by(self.sender):
            raise ValueError(
                f"{self.job.capture}: {address_text(self.sender)} sends no TCP payload in it; most "
                f"comes from {address_text(self.traffic.heaviest() or b'')}"
            )
        if not self.plan.left_out and (control := self.matcher.control_flows()):
            raise _WrongPlanError(_Plan(self.sender, control))
        self.matcher.finish()
        return self.matcher

    def _summary(self, capture: CaptureFile, matcher: pcaplib.Matcher, data_packets: int) -> Summary:
        stats = matcher.stats()
        skipped = capture.skipped + Counter(
            {
                "copy": stats.copies,
                "control connection": stats.left_out,
                "selective ACK cut by the snapshot length": stats.cut_sacks,
                "no TCP timestamps": self.view.without_timestamps() if self.view else 0,
            }
        )
        return {
            "trace": self.job.trace,
            "packets": capture.records,
            "data_packets": data_packets,
            "latency_known": stats.known,
            "retransmitted": stats.retransmitted,
            "flows": stats.flows,
            "receivers": stats.receivers,
            "sharp_changes": stats.sharp,
            "latency_ms": latency_quantiles(stats, matcher.latency_buckets()),
            "skipped": dict(sorted(skipped.items())),
        }


def _no_payload(capture: CaptureFile) -> str:
    if not capture.records:
        return "no packets in it"
    why = ", ".join(f"{reason}: {n:,}" for reason, n in capture.skipped.most_common(3))
    return f"no TCP payload in its {capture.records:,} packets" + (f" ({why})" if why else "")


def warnings(
    summary: Summary, stats: pcaplib.Stats, latency: str, buckets: npt.NDArray[np.int64]
) -> list[str]:
    """Return a line with the remedy for each way in which the table is not as expected."""
    lines = []
    if stats.copies:
        lines.append(
            f"{stats.copies:,} copies of packets were left out: the capture host saw them more than once; "
            "capture on one interface to have each once"
        )
    if stats.cut_sacks:
        lines.append(
            f"WARNING: the snapshot length cut the selective blocks off {stats.cut_sacks:,} of {stats.acks:,}"
            " ACKs, so what they covered has the latency of the cumulative ACK; capture 128 bytes a packet "
            "(`tcpdump -s 128`)"
        )
    if stats.span_ns == 0 and summary["data_packets"]:
        lines.append(
            "WARNING: all stamps are equal: the capture's clock stands still, so no latency can be known; "
            "capture again with a clock that runs"
        )
    elif stats.known < FEW_KNOWN * summary["data_packets"]:
        lines.append(_few_known(summary, stats))
    if latency != "timestamps" and seen_at_receiver(stats, buckets):
        lines.append(
            f"WARNING: the median latency is {summary['latency_ms']['p50']:g} ms, and ACKs leave where this "
            "was captured: it seems to be the receiver's side. Read it with `--latency timestamps`, or "
            "capture at the sender"
        )
    if latency == "timestamps" and stats.near_sender > stats.near_receiver:
        lines.append(
            "WARNING: its handshakes show that it was captured near the sender, where `--latency timestamps` "
            "counts the sender's pauses as latency; read it with `--latency acks`"
        )
    return lines


def _few_known(summary: Summary, stats: pcaplib.Stats) -> str:
    """Explain why hardly any latency is known."""
    reasons = [
        (stats.retransmitted, "are retransmitted (or copies that differ from their originals)"),
        (stats.sent_again, "were sent again before their ACK"),
        (stats.silent_packets, "belong to flows of which only one direction was captured"),
        (max(stats.unacknowledged - stats.silent_packets, 0), "no ACK covers"),
        (stats.off_clock, "have an ACK that is stamped no later than they"),
    ]
    found = ", ".join(f"{n:,} {why}" for n, why in sorted(reasons, reverse=True) if n)
    line = f"WARNING: {stats.known:,} of {summary['data_packets']:,} latencies are known: {found}"
    if stats.midway_flows:
        line += f"; {stats.midway_flows:,} of {stats.flows:,} flows began before the capture (mid-connection)"
    return line + "; capture both directions at the sender, from before the connections begin"


def seen_at_receiver(stats: pcaplib.Stats, buckets: npt.NDArray[np.int64]) -> bool:
    """Return whether a capture seems to have been made at the receiver.

    Handshakes show which end was near. Without one, ACKs that follow their data at once show it: half of
    them, or a tenth if they leave nothing in flight, because a receiver may delay some (RFC 1122, 4.2.3.2).
    """
    if not stats.known:
        return False
    if stats.near_sender or stats.near_receiver:
        return stats.near_receiver > stats.near_sender
    if latency_ms(stats, buckets, 0.5) < NO_PATH_MS:
        return True
    return latency_ms(stats, buckets, 0.1) < NO_PATH_MS and stats.full_acks > stats.new_acks / 2


def latency_ms(stats: pcaplib.Stats, buckets: npt.NDArray[np.int64], share: float) -> float:
    """Return a quantile of the known latencies."""
    rank = int(share * stats.known)  # an observed value; NumPy would interpolate between two
    return round(pcaplib.bucket_us(int(np.searchsorted(np.cumsum(buckets), rank, side="right"))) / 1e3, 3)


def latency_quantiles(stats: pcaplib.Stats, buckets: npt.NDArray[np.int64]) -> dict[str, float | None]:
    """Return min, p50, p90, p99 and max in ms, from exact ends and buckets of 1 us (see latency_stats.h)."""
    if not stats.known:
        return dict.fromkeys(("min", "p50", "p90", "p99", "max"))
    return {
        "min": round(stats.min_ns / 1e6, 3),
        "p50": latency_ms(stats, buckets, 0.50),
        "p90": latency_ms(stats, buckets, 0.90),
        "p99": latency_ms(stats, buckets, 0.99),
        "max": round(stats.max_ns / 1e6, 3),
    }


def summary_line(summary: Summary) -> str:
    """Return one trace's summary as a line of text."""
    ms = summary["latency_ms"]
    shown = " / ".join("-" if ms[key] is None else f"{ms[key]:.1f}" for key in ms)
    return (
        f"{summary['trace']}: {summary['packets']:,} packets, {summary['data_packets']:,} with data from "
        f"the sender ({summary['latency_known']:,} latencies known, {summary['retransmitted']:,} "
        f"retransmitted), {summary['flows']:,} flows to {summary['receivers']:,} receivers; latency ms "
        f"min/p50/p90/p99/max {shown}; {summary['sharp_changes']:,} sharp changes"
        + (
            f"; skipped {', '.join(f'{why}: {n:,}' for why, n in summary['skipped'].items())}"
            if summary["skipped"]
            else ""
        )
    )
