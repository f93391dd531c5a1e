"""What a sharp change of latency is, and from which change on a packet is late: for the loss and the scores.

Shapes: N windows in send order, or packets; H horizon (8 packets).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from common.section import Above0, Section, read, read_all


class Change(Section):
    """How large a change of latency counts: as sharp in the loss and the scores, and as late."""

    section: ClassVar = "change"
    least_ms: Above0
    """It is at least so many milliseconds ..."""
    least_share: Above0
    """... and at least that share of the latency before it."""

    @property
    def least_us(self) -> float:
        """Return the least change in microseconds."""
        return self.least_ms * 1e3

    def words(self) -> str:
        """As a page says it."""
        return f"{self.least_ms:g} ms and {100 * self.least_share:g} %"


PAPERS: Final = Change(least_ms=20.0, least_share=0.20)  # SwiftQueue, arXiv 2410.06112


def change_of(params: Path) -> Change:
    """Section `change` of a parameter file; one of before there was that section means the paper's.

    Raises:
        ValueError: a value cannot be; the line names it.
    """
    return read(params, Change) if Change.section in read_all(params) else PAPERS


def change_direction(
    latency_us: NDArray[Any], before_us: NDArray[Any], change: Change = PAPERS
) -> NDArray[np.int8]:
    """Return the direction of a sharp change: +1 a rise, -1 a drop, 0 neither."""
    before = np.asarray(before_us, dtype=np.float64)
    by = np.asarray(latency_us, dtype=np.float64) - before
    sharp = (np.abs(by) >= change.least_us) & (np.abs(by) >= change.least_share * np.abs(before))
    return np.where(sharp, np.sign(by), 0).astype(np.int8)


def sharp_changes(y_us_NH: NDArray[np.float32], change: Change = PAPERS) -> NDArray[np.bool_]:
    """Mark latencies that change sharply from the sender's packet before; unknown ones are passed over.

    The windows follow each other in send order, so what is before a window's first packet is in one before.
    """
    y_us_N = y_us_NH.reshape(-1)
    known = np.flatnonzero(~np.isnan(y_us_N))
    sharp_N = np.zeros(len(y_us_N), bool)
    sharp_N[known[1:]] = change_direction(y_us_N[known[1:]], y_us_N[known[:-1]], change) != 0
    return sharp_N.reshape(y_us_NH.shape)
