"""The values of a feature that a served version accepts: a range for each unit of the feature definition.

The ranges do not say what is usual. They bar impossible values: NaN, negative sizes, ages of years.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from feature_store.events.definition import Feature
from models.networks.scaling import ScaledFeature

YEAR_US: Final = 365 * 86_400e6
# unit: (lowest, highest)
LIMITS_BY_UNIT: Final = {
    "us": (0.0, YEAR_US),  # ages (of a flow, at most), gaps, latencies
    "bytes": (0.0, 2.0**30),  # the largest TCP window, RFC 7323 section 2.3
    "packets": (0.0, 2.0**24),  # counts stay exact in float32 up to here
    "ms": (0.0, YEAR_US / 1e3),
    "bytes_per_s": (0.0, 1.25e11),  # 1 Tbit/s
    "usual": (0.0, 1024.0),  # LFQ's signals, relative to their usual values
    "code": (-1.0, 4.0),  # a flag's change; the states of Linux's congestion control
    "flag": (0.0, 1.0),
    "sign": (-1.0, 1.0),
}


def limits_of(features: Sequence[ScaledFeature | Feature]) -> dict[str, dict[str, float]]:
    """Return the lowest and highest accepted value by feature name.

    Raises:
        ValueError: a feature has a unit without a range.
    """
    limits = {}
    for feature in features:
        if feature.unit not in LIMITS_BY_UNIT:
            known = ", ".join(sorted(LIMITS_BY_UNIT))
            raise ValueError(f"feature {feature.name}: no range for unit {feature.unit!r} (known: {known})")
        low, high = LIMITS_BY_UNIT[feature.unit]
        limits[feature.name] = {"low": low, "high": high}
    return limits
