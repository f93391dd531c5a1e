"""The live loop: a fine-tuning round every few minutes on the telemetry that arrived (docs/LIVE.md)."""

from __future__ import annotations

from typing import Final

# Population stability index of an input beyond which a full re-train is due. Stretches of the same simulated
# traffic differ by up to 0.8, its first half minute from the rest by 2.8 to 4.6
# (docs/explanation/live-loop.md).
DRIFT: Final = 1.5
