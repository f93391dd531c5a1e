"""Define a sharp change of latency, and a late packet, for the loss and the scores.

Shapes: N windows in send order, or packets; H horizon (8 packets).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common.section import Above0, Section, read, read_all


class Change(Section):
    """The smallest change of latency that counts as sharp in loss and scores, and as late."""

    section: ClassVar = "change"
    least_ms: Above0
    """Smallest number of milliseconds of a change."""
    least_share: Above0
    """Smallest change as a share of the latency before it; both limits must hold."""

    @property
    def least_us(self) -> float:
        """Return the least change in microseconds."""
        return self.least_ms * 1e3

    def words(self) -> str:
        """Return the definition as a page prints it."""
        return f"{self.least_ms:g} ms and {100 * self.least_share:g} %"


PAPERS: Final = Change(least_ms=20.0, least_share=0.20)  # SwiftQueue, arXiv 2410.06112


def change_of(params: Path) -> Change:
    """Return section `change` of a parameter file; older files without it get the paper's.

    Raises:
        ValueError: a value is invalid; the line names it.
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
    """Mark latencies that change sharply from the sender's packet before; unknown ones are skipped.

    The windows follow each other in send order, so the packet before a window's first is in an earlier one.
    """
    y_us_N = y_us_NH.reshape(-1)
    known = np.flatnonzero(~np.isnan(y_us_N))
    sharp_N = np.zeros(len(y_us_N), bool)
    sharp_N[known[1:]] = change_direction(y_us_N[known[1:]], y_us_N[known[:-1]], change) != 0
    return sharp_N.reshape(y_us_NH.shape)
