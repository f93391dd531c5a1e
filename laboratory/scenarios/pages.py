"""Draw users' web pages for a seed and read the rates of a variable link, as a run takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftqueue.laboratory.scenarios.checked import LEAST_LINK_MBPS, MOST_LINK_MBPS
from swiftqueue.laboratory.scenarios.traffic import Lognormal, Pages
from swiftqueue.pipelines.simulators import PROJECT


def drawn(traffic: Pages, seed: int | Sequence[int]) -> list[dict[str, Any]]:
    """Return the pages with their times and the bytes of their objects, the same for the same seed.

    If the sizes are given, each page has the next of them, and after the last the first again.
    """
    random = np.random.default_rng(seed)
    pages = []
    for i in range(traffic.pages):
        if traffic.sizes is not None:
            sizes = traffic.sizes[i % len(traffic.sizes)]
        else:
            assert traffic.objects is not None  # noqa: S101 - the schema asks for both
            assert traffic.object_bytes is not None  # noqa: S101
            (objects,) = _draw(random, traffic.objects, 1)
            sizes = _draw(random, traffic.object_bytes, objects).tolist()
        pages.append({"start_s": traffic.first_s + i * traffic.every_s, "bytes": sizes})
    return pages


def _draw(random: np.random.Generator, of: Lognormal, count: int) -> NDArray[np.int64]:
    values = np.round(of.median * np.exp(of.sigma * random.standard_normal(count)))
    return np.clip(values, of.least, of.most).astype(np.int64)


def allotted(
    mean_bps: float, every_s: float, shares: tuple[float, float], seconds: float, seed: Sequence[int]
) -> list[list[float]]:
    """Return a link's rates where they are drawn anew at equal intervals, the same for the same seed.

    Args:
        mean_bps: the rate that the shares are of.
        every_s: length of an interval, s.
        shares: least and largest share; all between are as likely.
        seconds: length of the run, s.
        seed: seed of the draws.
    """
    random = np.random.default_rng(seed)
    count = math.ceil(seconds / every_s)
    return [[i * every_s, round(mean_bps * random.uniform(*shares))] for i in range(count)]


def rates_of(trace: str | None, key: str, seconds: float) -> dict[str, Any]:
    """Return `rates` of a link: seconds and the rate from there on; empty without a trace.

    Args:
        trace: file of lines `seconds Mbit/s`, relative to the project's folder; each line holds from the
            time of the one before, and the first from 0, as in the traces of the Zhuge project.
        key: key of the scenario for errors.
        seconds: length of the run, s.

    Raises:
        ValueError: there is no such file, a line is malformed, or it ends before the run does.
    """
    if trace is None:
        return {}
    try:
        lines = (PROJECT / trace).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"{key}: {trace} cannot be read") from None
    rates: list[list[float]] = []
    from_s = 0.0
    for number, line in enumerate(lines, 1):
        try:
            until_s, mbps = map(float, line.split())
            sound = until_s > from_s and LEAST_LINK_MBPS <= mbps <= MOST_LINK_MBPS
        except ValueError:
            sound = False
        if not sound:
            raise ValueError(
                f"{key}: {trace}: line {number} is not a later time and a rate of {LEAST_LINK_MBPS:g} Mbit/s "
                "or more, such as `0.2 24.5`"
            )
        rates.append([from_s, mbps * 1e6])
        from_s = until_s
    if from_s < seconds:
        raise ValueError(f"{key}: {trace} ends at {from_s:g} s, the run at {seconds:g} s")
    return {"rates": [rate for rate in rates if rate[0] < seconds]}
