"""A forecast that is fed back into BBR in ns-3: what it gains, and what a wild one cannot do."""

from __future__ import annotations

import json
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from cpp_suite import passed

from swiftqueue.pipelines.simulators import build_simulator
from swiftqueue.studies.rate.experiments import feedback as rate_feedback
from swiftqueue.studies.rate.experiments.feedback import (
    BBR,
    CUBIC,
    ORACLE,
    OURS,
    VARIANTS,
    WINDOWS,
    Run,
    measure,
    summary,
)
from swiftqueue.studies.rate.results import feedback as page
from swiftqueue.studies.rate.results import published as rates
from swiftqueue.studies.rate.results.pages import tables

BOUND = 1.05  # share of plain BBR's time that a forecast a hundred times too high may cost at most


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator(program="rate")


def simulated(program: Path, folder: Path, **options: object) -> pl.DataFrame:
    """Three downloads of 3 MB, one at a time, over 100 Mbit/s and 100 ms."""
    folder.mkdir()
    given = {
        "rate-bps": 100e6, "rtt-ms": 100, "buffer-bdp": 1, "load": 0.02, "cross": 0.05, "receivers": 2,
        "flows": 3, "bytes": 3_000_000, "seed": 3, "window": 8 << 20,
    }  # fmt: skip
    words = [f"--{key.replace('_', '-')}={value}" for key, value in (given | options).items()]
    subprocess.run([program, *words, f"--out={folder}"], check=True)
    table = pl.read_csv(folder / "completions.csv")
    return table.with_columns(seconds=(pl.col("completed_ns") - pl.col("started_ns")) / 1e9)


@pytest.mark.slow
def test_the_rules_one_by_one() -> None:
    """The C++ suite without a network: what is used, how much of it, and until when."""
    assert passed("rate-feedback-test") == 5


@pytest.mark.long
@pytest.mark.slow
def test_an_oracle_helps_and_a_wild_forecast_does_little_harm(program: Path, tmp_path: Path) -> None:
    plain = simulated(program, tmp_path / "plain")
    oracle = simulated(program, tmp_path / "oracle", forecast="oracle")
    wild = simulated(program, tmp_path / "wild", forecast="oracle", scale=100)
    assert set(oracle["verdict"]) == set(wild["verdict"]) == {"used"}
    assert oracle["seconds"].median() < 0.7 * plain["seconds"].median()  # type: ignore[operator]
    for ours, without in zip(wild["seconds"], plain["seconds"], strict=True):
        assert ours < BOUND * without
    # It was followed as far as the first ACKs bear it out: no more is retransmitted than a hundredth.
    assert wild["retransmitted"].sum() <= 0.01 * wild["segments"].sum()


@pytest.mark.slow
def test_suss_is_faster_where_the_path_is_empty_and_no_wilder_where_it_is_not(
    program: Path, tmp_path: Path
) -> None:
    """SUSS against Cubic with HyStart: on a long fat path, and on one of 17 packets a round trip."""
    path = {"small": {"rate_bps": 4e6, "rtt_ms": 50, "bytes": 300_000}, "large": {}}
    found = {
        (size, control): simulated(program, tmp_path / f"{size}-{control}", control=control, **options)
        for size, options in path.items()
        for control in ("cubic", "suss")
    }
    fast, slow = (found["large", control]["seconds"] for control in ("suss", "cubic"))
    assert (fast < 0.85 * slow).all()
    assert found["large", "suss"]["retransmitted"].sum() == 0
    lost = {c: found["small", c]["retransmitted"].sum() for c in ("cubic", "suss")}
    assert lost["suss"] <= lost["cubic"]


@pytest.mark.long
@pytest.mark.slow
def test_a_forecast_that_cannot_be_or_comes_too_late_leaves_bbr_as_it_is(
    program: Path, tmp_path: Path
) -> None:
    plain = simulated(program, tmp_path / "plain")
    without = [(tmp_path / "plain" / name).read_bytes() for name in ("samples.csv", "flows.csv")]
    assert set(plain["verdict"]) == {"none"}
    for name, options, verdict in (
        ("zero", {"scale": "0"}, "not-a-rate"),
        ("infinite", {"scale": "inf"}, "not-a-rate"),
        ("nan", {"scale": "nan"}, "not-a-rate"),
        ("stale", {"delay_ms": 150}, "stale"),
    ):
        found = simulated(program, tmp_path / name, forecast="oracle", **options)
        assert set(found["verdict"]) == {verdict}
        assert [(tmp_path / name / file).read_bytes() for file in ("samples.csv", "flows.csv")] == without
        assert found["completed_ns"].equals(plain["completed_ns"])


@pytest.mark.slow
def test_what_there_is_none_of_is_one_line(program: Path, tmp_path: Path) -> None:
    for option, said in (
        ("--forecast=seer", "forecast seer: there is none of this name\n"),
        ("--control=reno2", "control reno2: there is none of this name\n"),
        ("--samples=36", "a value of the sender cannot be; see --help\n"),
    ):
        ran = subprocess.run(
            [program, option, "--flows=1", f"--out={tmp_path}"], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (1, said)
    with pytest.raises(ValueError, match=r"variant warp: must be one of bbr, oracle"):
        measure(program, tmp_path, tmp_path, [1], variants=["warp"])


def made_up() -> list[Run]:
    """Runs of two seeds at two round trips, in which only the times differ: known in advance."""
    factors = {BBR: 1.0, ORACLE: 0.5, OURS: 0.6}
    return [
        Run(variant, rtt, 1.0, window, seed, [f * rtt * (1 + i / 100) for i in range(5)], [1.0] * 5, 1000,
            10 if variant == OURS else 5, 5, 0)
        for variant, f in factors.items()
        for rtt in (100, 200)
        for window in WINDOWS
        for seed in (1, 2)
    ]  # fmt: skip


def test_the_figures_of_known_runs() -> None:
    found = summary(made_up())
    ours = found["feedback"]["default"][OURS]
    assert ours["change"]["mean"] == pytest.approx(-0.4)
    assert ours["share_of_oracle"]["mean"] == pytest.approx(0.8)
    assert ours["p99"]["mean"] == pytest.approx(-0.4)
    assert ours["points"]["mean"] == pytest.approx(0.5)
    assert ours["others"]["mean"] == pytest.approx(1)
    assert ours["p99"]["n"] == 2
    assert all(cell["mean"] == pytest.approx(-0.4) for cell in ours["by_rtt"].values())
    assert found["verdict"] == dict.fromkeys(found["wanted"], "reached")
    harmed = [replace(r, others_s=[1.2] * 5) if r.variant == OURS else r for r in made_up()]
    assert summary(harmed)["verdict"]["others"] == "not reached"
    text = "\n".join([*page.rows(found), *page.by_trip(found)])
    assert (
        "| **BBR, network (ours)** | -40.0 (-40.0 to -40.0) | 80.0 (80.0 to 80.0) | -40.0 (-40.0 to" in text
    )
    assert "P99 at most 5 % more: reached" in text


def test_a_sender_with_fewer_seeds_is_judged_beside_plain_bbr_of_these() -> None:
    half = [replace(r, variant="half-oracle") for r in made_up() if (r.variant, r.seed) == (ORACLE, 1)]
    found = summary([*made_up(), *half])
    cells = found["feedback"]["default"]
    assert (cells[OURS]["change"]["n"], cells["half-oracle"]["change"]["n"]) == (2, 1)
    assert cells["half-oracle"]["share_of_oracle"]["mean"] == pytest.approx(1)
    assert "| BBR, half the oracle (1 of 2 seeds) | -50.0 | 100.0 |" in "\n".join(page.rows(found))


def test_a_kernels_senders_without_the_network_are_published_beside_it(tmp_path: Path) -> None:
    paths = {"source": "kernel", "buffers_bdp": [1.0], "traffic": {"load": 0.3}}
    cubic = [replace(r, variant=CUBIC) for r in made_up() if r.variant == BBR]
    other = [r for r in made_up() if r.variant != OURS] + cubic
    study = tmp_path / "fct.json"
    (tmp_path / page.FILE).parent.mkdir(parents=True)

    def publish(runs: list[Run], **more: object) -> None:
        study.write_text(json.dumps(summary(runs) | paths | more))
        rates.take(study, tmp_path)

    publish(made_up())
    before = (tmp_path / page.KERNEL).read_bytes()
    publish([replace(r, seed=1, own_s=[2 * s for s in r.own_s]) for r in other if r.seed == 1])
    assert (tmp_path / page.KERNEL).read_bytes() == before
    with pytest.raises(
        ValueError, match=r"its traffic is not that of studies/rate/results/bed-fct\.json, which"
    ):
        publish(other, traffic={"load": 0.1})
    drawn = tables(rates.load(tmp_path))
    text = "\n".join(drawn["bed-fct"]())
    assert "BBR, oracle † | -50.0 | 100.0" in text
    assert "Cubic, HyStart † | +0.0 |" in text
    assert text.count("| BBR |") == 2  # one for each window
    assert " ".join(text.split()).count("downloads at a load of 0.3") == 2  # one for each study
    assert "P99 at most 5 % more: reached" in text
    assert "| Cubic, HyStart † | +0.0 | +0.0 |" in "\n".join(drawn["bed-fct-trips"]())


def test_a_tail_that_one_seed_lengthens_is_not_settled() -> None:
    """Seed 1 ends as plain BBR does, and of seed 2 one download takes twice as long."""
    one = [run for run in made_up() if run.variant != OURS]
    ours = [replace(run, variant=OURS) for run in one if run.variant == BBR]
    slow = [replace(run, own_s=[*run.own_s[:-1], 2 * run.own_s[-1]]) for run in ours if run.seed == 2]
    found = summary([*one, *(run for run in ours if run.seed == 1), *slow])
    p99 = found["feedback"]["default"][OURS]["p99"]
    assert p99["low"] < 0.05 < p99["mean"] < p99["high"]
    assert found["verdict"]["p99"] == "not settled"
    assert found["verdict"]["long_change"] == "not reached"
    assert "- P99 at most 5 % more: not settled" in page.rows(found)


def test_one_seed_without_a_long_round_trip() -> None:
    found = summary([replace(run, rtt_ms=50) for run in made_up() if (run.rtt_ms, run.seed) == (100, 1)])
    assert found["verdict"]["long_change"] == "no round trip from 100 ms on"
    assert found["verdict"]["p99"] == "reached"
    assert (
        "- 8 MB window, -30 % at each round trip from 100 ms on: no round trip from 100 ms on"
        in page.rows(found)
    )


def test_what_was_published_before_the_tail_had_an_interval_is_still_drawn() -> None:
    found = summary(made_up())
    cell = found["feedback"]["default"][OURS]
    cell |= {key: cell[key]["mean"] for key in ("p99", "points", "others")}
    found["verdict"] |= {"p99": False}
    text = "\n".join(page.rows(found))
    assert "80.0 (80.0 to 80.0) | -40.0 | +0.50 | 100.0 |" in text
    assert "P99 at most 5 % more: not reached" in text


@pytest.mark.slow
def test_a_study_goes_on_where_it_was_stopped(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real program, on a small path; the network is the dispersion here, which needs no artifact."""
    monkeypatch.setattr(rate_feedback, "PATH", rate_feedback.PATH | {"flows": 4, "bytes": 200_000})
    monkeypatch.setattr(rate_feedback, "BUFFERS_BDP", (1.0,))
    monkeypatch.setitem(VARIANTS, OURS, {"forecast": "dispersion"})
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"")
    told: list[int] = []
    first = measure(
        program, tmp_path / "runs", tmp_path, [1], lambda done, _of: told.append(done), [50], [BBR]
    )
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(first) == len(files) == 6  # three variants and two windows
    assert max(told) == 6
    assert statistics.median(first[0].own_s) > 0.1  # two round trips at least
    assert measure(program, tmp_path / "runs", tmp_path, [1], rtts_ms=[50], variants=[BBR]) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == files
