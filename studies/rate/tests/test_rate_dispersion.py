"""The baseline `dispersion` beside the header that simulator and kernel hold forecasts against."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from rate_flows import samples_of

from studies.rate.model.flows import Flows
from studies.rate.model.predictors import TRAIN, dispersion, dispersion_of_all
from studies.rate.samples.definition import HORIZONS, MOST_SAMPLES, NAMES, PREFIXES, inputs

PROGRAM = """
#include <cstdio>
#include "studies/rate/samples/dispersion.h"
int main() {
  int acks;
  while (std::scanf("%d", &acks) == 1) {
    swiftqueue::rate::Dispersion train;
    for (long us, bytes; acks > 0 && std::scanf("%ld %ld", &us, &bytes) == 2; --acks) train.acked(us, bytes);
    std::printf("%lu\\n", static_cast<unsigned long>(train.get()));
  }
}
"""
TS, ACKED, BBR = (NAMES.index(name) for name in ("ts", "bytes_acked", "bbr_bw"))


def flows_of(raw_NSF: np.ndarray) -> Flows:
    n, none = len(raw_NSF), np.full((len(raw_NSF), len(HORIZONS)), np.nan)
    zeros = np.zeros(n, np.int64)
    x_NSF = np.stack([inputs(raw) for raw in raw_NSF])
    return Flows(x_NSF, zeros + MOST_SAMPLES, none, none, zeros.astype(float), zeros, zeros, zeros > 0)


def drawn(flows: int) -> np.ndarray:
    """Flows (N, S, F) of ACKs that share a microsecond or acknowledge nothing new; the last has no gap."""
    draw = np.random.default_rng(1)
    raw_NSF = np.zeros((flows, MOST_SAMPLES, len(NAMES)), np.int64)
    shape = raw_NSF.shape[:2]
    for at, most in ((TS, 3_000), (ACKED, 9_000)):
        steps = draw.integers(1, most, shape) * (draw.random(shape) < 0.6)
        raw_NSF[..., at] = steps.cumsum(1)
    raw_NSF[-1, :, TS] = 50_000
    raw_NSF[..., BBR] = 123_456 + np.arange(MOST_SAMPLES)
    return raw_NSF


@pytest.fixture(scope="module")
def header(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that says the dispersion of the ACKs that it reads."""
    program = tmp_path_factory.mktemp("header") / "dispersion"
    words = ["g++", "-std=c++20", "-x", "c++", "-", f"-I{project}", "-o", str(program)]
    subprocess.run(words, input=PROGRAM, text=True, check=True)
    return program


def test_it_is_the_headers(header: Path) -> None:
    raw_NSF = drawn(200)
    flows = flows_of(raw_NSF)
    for n in PREFIXES:
        lines = [f"{n} " + " ".join(map(str, raw[:n][:, [TS, ACKED]].ravel())) for raw in raw_NSF]
        ran = subprocess.run(header, input="\n".join(lines), capture_output=True, text=True, check=True)
        said = np.array(ran.stdout.split(), int)
        assert (said[:-1] > 0).sum() > 150
        assert said[-1] == 0
        expected = np.where(said > 0, said, raw_NSF[:, n - 1, BBR])  # without a gap: BBR's own estimate
        assert (dispersion(flows, flows, n, 1)(flows) == expected[:, None]).all()


def test_paced_acks_are_none_of_it() -> None:
    """The train tells 2 MB/s; then a paced packet each 10 ms."""
    raw = np.array([list(row.values()) for row in samples_of(2e6, 50_000)])
    raw[TRAIN:, TS] = raw[TRAIN - 1, TS] + 10_000 * np.arange(1, MOST_SAMPLES - TRAIN + 1)
    flows = flows_of(raw[None])
    assert dispersion(flows, flows, 35, 1)(flows)[0] == pytest.approx(2e6, rel=0.01)
    assert dispersion_of_all(flows, flows, 35, 1)(flows)[0] == pytest.approx(144e3, rel=0.01)
