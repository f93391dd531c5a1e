"""Writes studies/rate/tests/golden.json: samples of two flows and, bit for bit, the inputs that they give.

Any implementation must turn the samples into these bits (float32 in hexadecimal, little-endian, row by row).
Run it only when the definition changes on purpose: `python studies/rate/tests/make_golden_rate.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np

from swiftqueue.studies.rate.samples.definition import FIELDS, inputs, schema_hash

GOLDEN = Path(__file__).parent / "golden.json"


def flow(seed: int, n: int) -> list[list[int]]:
    """Samples that no kernel would tell, over all sizes of numbers."""
    draw, last, rows = random.Random(seed), [0] * len(FIELDS), []
    for _ in range(n):
        for f, field in enumerate(FIELDS):
            new = draw.randrange(10 ** draw.randrange(1, 12))
            last[f] = {"value": new, "count": last[f] + new, "flag": new % 2}[field.kind]
        rows.append(list(last))
    return rows


def golden() -> dict[str, object]:
    """Return the content of the file."""
    flows = [flow(7, 35), flow(8, 1)]
    made = [inputs(np.array(rows)).astype("<f4").tobytes().hex() for rows in flows]
    return {"schema_hash": schema_hash(), "samples": flows, "inputs": made}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden()) + "\n")
