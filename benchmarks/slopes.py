"""Read the samples of a long run, lines of JSON, and compute how fast each quantity grows."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

STRETCHES: Final = 12
STUDENT: Final = 2.228  # Student's t for 97.5 % with STRETCHES - 2 degrees of freedom
MIB: Final = 2**20
BEST: Final = 100.0  # ratio of a quantity that does not grow at all


def line(times: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the slope and its 95 % interval, from the means of stretches."""
    x = np.array([part.mean() for part in np.array_split(times, STRETCHES)])
    y = np.array([part.mean() for part in np.array_split(values, STRETCHES)])
    x, y = x - x.mean(), y - y.mean()
    slope = float((x @ y) / (x @ x))
    rest = y - slope * x
    margin = STUDENT * math.sqrt(float(rest @ rest) / (STRETCHES - 2) / float(x @ x))
    return slope, slope - margin, slope + margin


def read(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a file, oldest first; a line cut short is left out."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def tree(folder: Path) -> tuple[int, int]:
    """Return the total bytes and the number of the files under a folder."""
    size = count = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # files deleted meanwhile
                size += os.lstat(os.path.join(root, name)).st_size
                count += 1
    return size, count
