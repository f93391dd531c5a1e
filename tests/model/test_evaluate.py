"""Metrics, verdict, plot tables and report from predictions; the whole stage on a toy sender (slow)."""

from __future__ import annotations

import copy
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_windows

from models import metrics, plot_tables, verdict
from models.evaluation import BASELINES, FINETUNED, METHODS, TracePredictions

PROTOCOL = toy_windows.PROTOCOL


def predictions(
    trace: str = "toy",
    *,
    seed: int = 1,
    rounds: int = 2,
    late: bool = True,
    known: bool = True,
    noise: float = 0.1,
) -> TracePredictions:
    """Test slices of 100 windows a round; the fine-tuned model errs by `noise`, the others by 0.3."""
    rng = np.random.default_rng(seed)
    windows = 100 * rounds
    y = rng.choice([20e3, 90e3] if late else [20e3], p=[0.9, 0.1] if late else [1.0], size=(windows, 8))
    us = {m: y * np.exp(rng.normal(0, noise if m == FINETUNED else 0.3, y.shape)) for m in METHODS}
    y[rng.random(y.shape) < (0.05 if known else 1.1)] = np.nan
    last = np.where(rng.random(y.shape) < 0.02, 0.0, 21e3)
    return TracePredictions(
        trace=trace,
        round_B=np.repeat(np.arange(rounds), 100),
        decision_ns_B=np.arange(windows, dtype=np.int64) * 40_000_000,
        y_BH=y,
        last_flow_BH={"acked": last, "previous": last},
        gap_BH=dict.fromkeys(("acked", "previous"), np.zeros(y.shape, np.int8)),
        us_BH={"acked": us, "previous": us},
    )


def evaluate(*parts: TracePredictions) -> dict[str, Any]:
    return metrics.evaluate(list(parts), protocol=PROTOCOL, seed=1, false_alarm_rate=0.01)


def test_every_method_says_its_conditions_and_pooling_counts_every_packet() -> None:
    first, second = predictions("a", seed=1), predictions("b", seed=2)
    got = evaluate(first, second)
    json.dumps(got, allow_nan=False)
    assert list(got["traces"]) == ["a", "b"]
    for method in METHODS:
        for scores in (got["all"][method], got["traces"]["a"][method]):
            assert (scores["protocol"], scores["seed"]) == ("short", 1)
            assert {"n", "late", "error", "sharp"} <= set(scores["acked"]) & set(scores["previous"])
        pooled, parts = got["all"][method]["acked"], [got["traces"][t][method]["acked"] for t in "ab"]
        assert pooled["n"] == sum(p["n"] for p in parts)
        total = sum(p["error"]["mae_ms"] * p["n"] for p in parts)
        assert pooled["error"]["mae_ms"] == pytest.approx(total / pooled["n"])
        changes = [p["sharp"]["truth_change"]["all"]["n_true"] for p in parts]
        assert pooled["sharp"]["truth_change"]["all"]["n_true"] == sum(changes)


def test_the_last_slice_is_the_last_round_alone() -> None:
    part = predictions(rounds=3)
    got = evaluate(part)["last_slice"]["toy"]
    rows = part.round_B == 2
    assert (got["round"], got["visibility"], got["protocol"]) == (2, "acked", "short")
    for method in METHODS:
        error = np.abs(part.us_BH["acked"][method] - part.y_BH)[rows] / 1e3
        assert got[method]["mae_ms"] == pytest.approx(np.nanmean(error))
        assert got[method]["n"] == np.isfinite(part.y_BH[rows]).sum()


@pytest.mark.slow
@pytest.mark.parametrize("what", [{"late": False}, {"known": False}, {"rounds": 1}])
def test_edges_give_null_and_never_nan(what: dict[str, Any], tmp_path: Path) -> None:
    """No late packet, no known latency, one round: valid JSON, tables, plots and a page all the same."""
    from pipelines import evaluate as stage

    part = predictions(**what)
    got = evaluate(part)
    stage.write(tmp_path, got, [part], "command")
    assert "NaN" not in (tmp_path / "metrics.json").read_text()
    headline = got["all"][FINETUNED]["acked"]
    assert (headline["late"]["average_precision"] is None) is ("rounds" not in what)
    assert (headline["error"]["mae_ms"] is None) is ("known" in what)
    for table in (tmp_path / "plots").glob("*.csv"):
        assert "NaN" not in table.read_text()
    assert "<h2>Verdict</h2>" in (tmp_path / "report" / "report.html").read_text()


def test_the_verdict_says_loses_by_name_with_both_figures() -> None:
    got = evaluate(predictions("a", seed=1, noise=0.6), predictions("b", seed=2, noise=0.6))
    ours = verdict.ERROR.of(got["all"][FINETUNED])
    for name in BASELINES:
        theirs = verdict.ERROR.of(got["all"][name])
        expected = (
            f"On all traces the fine-tuned model loses to {name} on the mean absolute error: "
            f"{ours:.2f} ms against {theirs:.2f} ms"
        )
        assert any(s.kind == "loses" and s.text.startswith(expected) for s in verdict.verdict(got))


def test_the_verdict_says_beats_when_it_beats_every_baseline() -> None:
    said = verdict.verdict(evaluate(predictions(noise=0.05)))
    assert {s.kind for s in said} == {"wins", "note"}
    assert sum("beats every baseline" in s.text for s in said) == 2


def test_within_the_noise_only_where_the_paired_interval_holds_zero() -> None:
    got = evaluate(predictions(noise=0.6))
    lost = {s.text for s in verdict.verdict(got) if "loses to ewma on the mean absolute error" in s.text}
    assert not any("within the noise" in text for text in lost)
    nearly = copy.deepcopy(got)
    nearly["all"]["ewma"]["acked"]["finetuned_minus_this"]["mae_ms_95"] = [-0.1, 0.2]
    assert any(
        "loses to ewma on the mean absolute error" in s.text and "within the noise" in s.text
        for s in verdict.verdict(nearly)
    )


def test_paired_intervals_are_of_the_difference() -> None:
    """A method whose error is always 1 ms larger differs by exactly that in every draw."""
    part = predictions()
    truth = np.nan_to_num(part.y_BH, nan=1.0)
    part.us_BH["acked"] |= {FINETUNED: truth + 1e3, "ewma": truth + 2e3}
    got = evaluate(part)["all"]["ewma"]["acked"]["finetuned_minus_this"]
    assert got["mae_ms_95"] == pytest.approx([-1, -1])


def test_plot_tables_hold_what_they_say() -> None:
    part = predictions()
    known = np.isfinite(part.y_BH)
    error = np.abs(part.us_BH["acked"][FINETUNED] - part.y_BH) / 1e3
    by_place = plot_tables.error_by_horizon_table([part])
    assert by_place[FINETUNED].to_list() == pytest.approx(np.nanmean(error, axis=0).tolist())
    over_time = plot_tables.mean_over_time([plot_tables.score_over_time_table(part)])
    assert over_time["n"].sum() == known.sum()
    assert (over_time[FINETUNED] * over_time["n"]).sum() == pytest.approx(error[known].sum())
    marks = over_time.filter(pl.col("fine_tuned").is_not_null())["time_s"].to_list()
    assert marks == [0, 4]  # 100 windows a round, one every 40 ms
    curve = plot_tables.precision_recall_table([part])
    assert curve["base_rate"][0] == pytest.approx(
        evaluate(part)["all"][FINETUNED]["acked"]["late"]["base_rate"]
    )
    assert curve[FINETUNED].is_between(0, 1).all()


def test_lines_around_a_change_are_aligned_at_it() -> None:
    part = predictions(late=False)
    part.y_BH = np.full((100, 8), 20e3)
    part.y_BH.ravel()[400:] = 80e3  # one rise, at packet 400
    part.us_BH["acked"] = dict.fromkeys(METHODS, np.full((100, 8), 30e3))
    part.round_B, part.decision_ns_B = part.round_B[:100], part.decision_ns_B[:100]
    table = plot_tables.sharp_changes_table([part])
    assert table["rise_true"].to_list() == [20.0] * plot_tables.AROUND + [80.0] * (plot_tables.AROUND + 1)
    assert table["drop_true"].null_count() == table.height
    (example,) = plot_tables.change_examples(part)
    assert (example.packet, example.rise) == (400, True)


def run_stage(project: Path, folder: Path, *, params: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "params.yaml").write_text(
        params or "evaluate: {seed: 1, xgboost_rounds: 40, false_alarm_rate: 0.01}\n"
    )
    command = [sys.executable, "-m", "pipelines.evaluate", "--params", folder / "params.yaml"]
    for name in ("windows", "finetuned", "pretrained"):
        command += [f"--{name}", folder / name]
    command += ["--output", folder / "evaluation"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def evaluated(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage, run as DVC runs it, on two toy traces with untrained artifacts."""
    folder = tmp_path_factory.mktemp("evaluate")
    traces = {f"toy-{i}": toy_windows.make_packets(i, 10) for i in (1, 2)}
    toy_windows.write_windows(folder / "windows", traces, ("acked", "previous"))
    about = json.loads((folder / "windows" / "meta.json").read_text())["traces"]
    toy_windows.write_artifacts(folder, {name: len(a["rounds"]) for name, a in about.items()})
    done = run_stage(project, folder)
    assert done.returncode == 0, done.stderr
    assert "report at" in done.stdout
    return folder


@pytest.mark.slow
def test_the_stage_scores_every_method_under_both_visibilities(evaluated: Path) -> None:
    got = json.loads((evaluated / "evaluation" / "metrics.json").read_text(), parse_constant=pytest.fail)
    for scores in (got["all"], *got["traces"].values()):
        for method in METHODS:
            for visibility in ("acked", "previous"):
                assert scores[method][visibility]["error"]["mae_ms"] > 0
        # An untrained model knows nothing; trees that see the queue must be better.
        assert scores["xgboost"]["acked"]["error"]["log_mae"] < scores[FINETUNED]["acked"]["error"]["log_mae"]
        # Repeating the last visible latency of the flow says of no packet that it will be later.
        late = scores["last_flow"]["acked"]["late"]
        assert late["average_precision"] == pytest.approx(late["base_rate"])
        # With every earlier latency known, the next one is easy on this toy.
        assert (
            scores["last_sender"]["previous"]["error"]["mae_ms"]
            < scores["last_sender"]["acked"]["error"]["mae_ms"]
        )
    assert got["all"][FINETUNED]["acked"]["error"] != got["all"]["pretrained"]["acked"]["error"]


@pytest.mark.slow
def test_the_page_is_self_contained_and_names_its_conditions(evaluated: Path) -> None:
    report = evaluated / "evaluation" / "report"
    page = (report / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(list(report.glob("*.png"))) == 5
    assert 'src="http' not in page
    assert "<link" not in page
    assert "loses to xgboost" in page
    assert page.count("protocol short") >= 5
    assert "python -m pipelines.evaluate --params" in page


@pytest.mark.slow
def test_the_columns_that_dvc_plots_are_in_the_tables(evaluated: Path, project: Path) -> None:
    import yaml

    for plot in yaml.safe_load((project / "dvc.yaml").read_text())["plots"]:
        (described,) = plot.values()
        for axis in ("x", "y"):
            for path, columns in described[axis].items():
                with (evaluated / Path(path).relative_to("data")).open() as table:
                    header = next(csv.reader(table))
                assert set([columns] if isinstance(columns, str) else columns) <= set(header)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ("artifact", "round-1/model.json: no such file"),
        ("schema", "made for features 0123abcd, but this code computes ffff"),
        ("encoder", "round-0: encoder weight .* is not that of the pre-trained model"),
        ("params", "evaluate.false_alarm_rate is 2; it must be a share between 0 and 1"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    evaluated: Path, project: Path, tmp_path: Path, broken: str, line: str
) -> None:
    import re

    folder = tmp_path / "stage"
    shutil.copytree(evaluated, folder, ignore=shutil.ignore_patterns("evaluation"))
    params = ""
    if broken == "artifact":
        shutil.rmtree(folder / "finetuned" / "toy-1" / "round-1")
    elif broken == "schema":
        meta = folder / "windows" / "meta.json"
        meta.write_text(meta.read_text().replace("0123abcd", "ffff"))
    elif broken == "encoder":
        from safetensors.torch import load_file, save_file

        weights = folder / "finetuned" / "toy-1" / "round-0" / "model.safetensors"
        state = load_file(weights)
        save_file({k: v + 0.1 if k == "embedding.bias" else v for k, v in state.items()}, weights)
    else:
        params = "evaluate: {seed: 1, xgboost_rounds: 5, false_alarm_rate: 2}\n"
    done = run_stage(project, folder, params=params)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("evaluate: ")
    assert re.search(line, last), last
    assert not (folder / "evaluation").exists()
