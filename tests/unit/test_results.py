"""The pages of docs/results, the README's table and its pictures are what the published data give."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from lab_rows import runs_of
from lab_rows import table as table_of

from swiftqueue.benchmarks import published
from swiftqueue.benchmarks.results import bars, evaluations, forecasters, replayed
from swiftqueue.benchmarks.results.pages import END, FOLDER, STUDIES, filled, rewrite
from swiftqueue.benchmarks.results.pictures import PICTURES
from swiftqueue.benchmarks.results.tables import TABLES, Data, many_places
from swiftqueue.benchmarks.results.themes import TONES
from swiftqueue.benchmarks.rows import Row
from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report.judging import SERVED
from swiftqueue.laboratory.report.tables import controls_in_brief
from swiftqueue.laboratory.scenarios.schema import PROFILES

ROW = Row("a thing", 2.0, 1.0, "another", 2.0, "s", 3)


@pytest.fixture(scope="module")
def data(project: Path) -> Data:
    return Data.load(project)


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Path:
    """What the command reads and writes, in a folder of its own."""
    for path in ("docs/results", "docs/laboratory"):
        shutil.copytree(project / path, tmp_path / path, ignore=shutil.ignore_patterns("models", "*.png"))
    shutil.copy(project / "README.md", tmp_path)
    if (project / STUDIES).is_dir():
        shutil.copytree(project / STUDIES, tmp_path / STUDIES, ignore=shutil.ignore_patterns("tests", "*.cc"))
    return tmp_path


@pytest.mark.slow
def test_every_page_and_picture_is_drawn_from_the_data(copy: Path) -> None:
    """What was typed is drawn anew, and nothing else differs from what is committed."""
    page, picture = copy / FOLDER / "figure8.md", copy / FOLDER / "p99.svg"
    was, shown = page.read_text(), picture.read_bytes()
    page.write_text(was.replace("| 51.08 |", "| 41.08 |"))
    assert page.read_text() != was
    picture.write_bytes(shown[:-100])
    assert rewrite(copy) == [FOLDER / "p99.svg", FOLDER / "figure8.md"], "to draw them: swiftqueue results"
    assert (page.read_text(), picture.read_bytes()) == (was, shown)


def test_every_table_has_its_page(project: Path) -> None:
    pages = [project / "README.md", *(project / FOLDER).glob("*.md")]
    shown = [name for page in pages for name in re.findall(r"<!-- table: (\S+) -->", page.read_text())]
    assert sorted(shown) == sorted(TABLES)
    index = (project / FOLDER / "README.md").read_text()
    assert all(f"[{page.stem}]({page.name})" in index for page in pages if page.stem != "README")


def test_every_table_of_a_study_has_its_place_on_its_pages(project: Path) -> None:
    for module in (project / STUDIES).glob("*/results.py"):
        study = importlib.import_module(f"swiftqueue.{STUDIES}.{module.parent.name}.results")
        pages = [page.read_text() for page in module.parent.glob("*.md")]
        shown = [name for page in pages for name in re.findall(r"<!-- table: (\S+) -->", page)]
        assert sorted(shown) == sorted(study.TABLES), module


@pytest.mark.parametrize(("pages", "words"), [("docs/results/[a-z]*.md", 300), ("studies/*/README.md", 800)])
def test_a_page_is_short(project: Path, pages: str, words: int) -> None:
    """The words that are drawn do not count; a result has one table and one picture at most."""
    drawn = re.compile(r"<!-- table: .*?<!-- end -->", re.S)
    for page in project.glob(pages):
        text = page.read_text()
        assert len(drawn.sub("", text).split()) <= words, page
        if words == 300:
            assert max(len(drawn.findall(text)), text.count("![")) <= 1, page


def test_the_headline_is_of_what_is_served(data: Data) -> None:
    controls = {"default": 1.0, "random": 0.8, "model": 0.5}
    rows = [row for p in PROFILES for row in runs_of(controls, scenario=SERVED, profile=p)]
    said = [line for line in TABLES["summary"](replace(data, runs=table_of(rows))) if "P99 wait" in line]
    assert len(said) == 2
    assert all("-50.0 %" in line and "by chance -20.0 %" in line for line in said)


def test_each_tone_has_more_contrast_where_the_scheme_is_known() -> None:
    for tone, (light, dark) in TONES.items():
        assert contrast(light, "#ffffff") > max(4.5, contrast(tone, "#ffffff")), tone
        assert contrast(dark, "#0d1117") > max(4.5, contrast(tone, "#0d1117")), tone


def contrast(colour: str, ground: str) -> float:
    """WCAG 2.2, relative luminance and contrast ratio."""

    def luminance(hexed: str) -> float:
        parts = [int(hexed[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted([luminance(colour), luminance(ground)])
    return (lighter + 0.05) / (darker + 0.05)


def test_a_rounds_timeline_is_as_long_as_the_round(data: Data) -> None:
    (axes,) = bars.timeline(data).axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([0.0, *ends[:-1]], abs=1e-3)
    (total,) = (row.ours for row in data.benchmark("live").rows if row.name == "step total")
    assert ends[-1] == pytest.approx(total, rel=0.02)


def test_a_page_that_cannot_be_drawn_is_named(data: Data) -> None:
    with pytest.raises(ValueError, match=r"x\.md: there is no table no-such; these are: targets"):
        filled(f"<!-- table: no-such -->\n{END}\n", Path("x.md"), {"targets": list})
    with pytest.raises(ValueError, match=f"x.md: table targets has no line {END}"):
        filled("<!-- table: targets -->\n", Path("x.md"), {"targets": list})
    empty = Data({}, data.runs, {})
    with pytest.raises(ValueError, match="has no wifi: swiftqueue results --scores wifi FILE"):
        TABLES["wifi"](empty)
    with pytest.raises(ValueError, match="has no swap: swiftqueue bench swap --publish"):
        TABLES["bench-swap"](empty)


def test_pictures_are_readable_on_light_and_dark_pages(project: Path) -> None:
    """Each follows the page's scheme, and has middle tones where none is known."""
    for name in PICTURES:
        text = (project / FOLDER / name).read_text()
        for scheme in ("light", "dark"):
            assert text.count(f"@media (prefers-color-scheme: {scheme})") == 1, name
        ElementTree.fromstring(text)  # noqa: S314 - our own file
        assert len(text) < 100_000
        assert not re.search(
            r"(fill|stroke): ?(#ffffff|#000000|white|black)", text
        )  # no ground, no black ink
        assert "<text" in text  # not drawn as outlines
        assert not re.search(r"\b20\d\d-\d\d-\d\d", text)


def test_a_benchmark_takes_the_place_of_its_old_figures(copy: Path) -> None:
    path = copy / published.FILE
    before = published.load(path)
    published.publish("ingest", [ROW], path)
    after = published.load(path)
    assert after["ingest"].rows == [ROW]
    assert {**after, "ingest": None} == {**before, "ingest": None}
    assert "| a thing | 2 s | 1 s | another | 2 |" in TABLES["bench-ingest"](Data.load(copy))
    path.write_text('{"ingest": {}}')
    with pytest.raises(ValueError, match=r"bench\.json is damaged \(.*: restore it with git"):
        published.publish("ingest", [ROW], path)
    with pytest.raises(ValueError, match=r"bench\.json is not here: run this in the project's folder"):
        published.load(copy / "no" / "bench.json")


def test_nothing_is_published_outside_the_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from swiftqueue.cli.app import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["results", "--tuning", str(project / FOLDER / "tuning.json")])
    assert "run this in the project's folder" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_no_table_holds_becomes_a_list(copy: Path) -> None:
    published.publish("ingest", [Row("x" * 200, 2.0, 1.0, "y", 2.0, "us", 3)], copy / published.FILE)
    lines = TABLES["bench-ingest"](Data.load(copy))
    assert "- **2 µs**:" in lines
    assert not any(line.startswith("|") for line in lines)


def test_the_published_scores_are_near_those_under_version_control(project: Path) -> None:
    """Another machine trains another model of the same settings; more than that is another evaluation."""
    headline = json.loads((project / "data/evaluation/metrics.json").read_text())
    shown = read_object(project / evaluations.FILE)["late-packets"]
    assert (shown["n"], shown["n_late"]) == (headline["n"], headline["n_late"])
    for method in ("finetuned", "xgboost", "virtual_queue"):
        ours, theirs = shown["methods"][method], headline[method]
        assert ours["average_precision"] == pytest.approx(theirs["average_precision"], abs=0.02)
        assert ours["mae_ms"] == pytest.approx(theirs["mae_ms"], abs=0.1)


def test_scores_that_are_none_are_refused(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"all": {}}')
    before = (copy / evaluations.FILE).read_bytes()
    with pytest.raises(ValueError, match=r"other\.json is no scores\.json of the stage evaluate"):
        evaluations.take("wifi", other, copy / evaluations.FILE)
    assert (copy / evaluations.FILE).read_bytes() == before


def recorded(latency_us: list[float | None], queue: str = "l4s") -> pl.DataFrame:
    """What `replay` records: a packet each 100 ms."""
    n = len(latency_us)
    return pl.DataFrame(
        {
            "decision_ns": [100_000_000 * i for i in range(n)],
            "queue_sent": [queue] * n,
            "queue_chosen": ["classic" if i % 2 else "l4s" for i in range(n)],
            "predicted_us": [1_000.0] * n,
            "latency_us": latency_us,
        }
    )


def test_two_seconds_are_those_whose_latency_varies_most(tmp_path: Path) -> None:
    path = tmp_path / "replay.parquet"
    recorded([1_000.0] * 20 + [1_000.0, 90_000.0] * 10 + [None] * 5).write_parquet(path)
    found = replayed.two_seconds(path)
    assert found.shape == (20, 4)
    assert found["time_ms"].to_list() == pytest.approx([100 * i for i in range(20)])
    assert found["latency_ms"].max() == 90
    assert found["moved"].to_list() == [0, 1] * 10
    recorded([1_000.0], queue="classic").write_parquet(path)
    with pytest.raises(ValueError, match="no packet was decided and acknowledged"):
        replayed.two_seconds(path)
    recorded([1_000.0]).drop("queue_sent").write_parquet(path)
    with pytest.raises(ValueError, match=r'replay\.parquet is nothing that .* column "queue_sent"[^\n]*$'):
        replayed.two_seconds(path)
    recorded([1_000.0]).cast({"latency_us": pl.String}).write_parquet(path)
    with pytest.raises(ValueError, match=r"replay\.parquet is nothing that [^\n]*$"):
        replayed.two_seconds(path)
    path.write_text("no Parquet")
    with pytest.raises(ValueError, match="cannot be read"):
        replayed.two_seconds(path)


SEEDS_DIFFER = [-0.04, 0.20]


@pytest.mark.parametrize(
    ("ends", "lower_is_better", "found"),
    [
        ([[0.01, 0.20], [0.03, 0.10]], False, "**better**"),
        ([[0.01, 0.20], [0.03, 0.10]], True, "**worse**"),
        ([[-0.30, -0.10], [-0.20, -0.01]], True, "**better**"),
        ([[-0.30, -0.10], [-0.20, -0.01]], False, "**worse**"),
        ([[-0.02, 0.20], [0.01, 0.10]], False, "no worse"),
        ([[-0.20, 0.02], [-0.10, 0.01]], True, "no worse"),
        ([SEEDS_DIFFER, [0.01, 0.10]], False, "not settled"),
        ([[-0.20, 0.03], [-0.10, -0.01]], True, "not settled"),
        ([None, [0.01, 0.10]], False, "not settled"),
    ],
)
def test_a_verdict_needs_all_intervals(
    ends: list[list[float] | None], lower_is_better: bool, found: str
) -> None:
    assert forecasters.verdict(ends, 0.02, lower_is_better=lower_is_better) == found


def scored(precision: float) -> dict[str, Any]:
    return {"average_precision": {"mean": precision}, "mae_ms": {"mean": 4.0}, "regret_ms": {"mean": 1.0}}


def test_two_layers_are_judged_over_the_draws_of_each_long_kind(data: Data) -> None:
    lines = forecasters.beside_layers(data.forecasters)
    assert len(lines) == 2 + 4 * 4 + 2  # a BiLSTM was run on the kinds of web pages alone
    draws = {
        f"{kind}-{seed}": {
            "variants": {
                "event-stream-2": {"tuned": scored(0.5 + 0.01 * number)},
                **{
                    other: {"tuned": scored(0.6 + 0.012 * number)}
                    for other in ("window", "window-queueing", "bilstm", "mlp", "xgboost")
                },
            }
        }
        for kind in forecasters.LONG
        for first in (1301, 1401, 1501)
        for number, seed in enumerate(range(first, first + 5))
    }
    worse = "0.520, **-0.104** (-0.108 to -0.100) | 4.00, +0.00 (+0.00 to +0.00) | 1.00, "
    assert any(
        line.startswith(f"| web-long | cumulative | `window` | {worse}")
        for line in forecasters.beside_layers(draws)
    )
    del draws["video-long-1503"]["variants"]["mlp"]
    with pytest.raises(ValueError, match="has no event-stream-2 beside mlp on each of video-long-1501"):
        forecasters.beside_layers(draws)
    del draws["video-long-1303"]
    with pytest.raises(ValueError, match="has no video-long-1303"):
        forecasters.beside_layers(draws)


def test_a_place_is_bold_where_a_harm_is_settled() -> None:
    changes = {"default": 1.0, "model": 2.0}
    harmed = table_of(runs_of(changes, scenario="anywhere-figure8", point="here"))
    helped = table_of(runs_of({**changes, "model": 0.5}, scenario="anywhere-followed", point="here"))
    (row,) = many_places(pl.concat([harmed, helped]))[2:]
    assert row == "| `uncoupled` | here | **+100.0 % (+100.0…+100.0)** | -50.0 % (-50.0…-50.0) | – |"


def test_each_control_has_one_row_in_brief() -> None:
    runs = table_of(runs_of({"default": 1.0, "random": 0.8, "model": 0.5}, profile="rfc9332"))
    lines = controls_in_brief(runs)
    assert [line.split(" | ")[1] for line in lines[2:]] == ["`random`", "`model`"]
    assert " | -50.0 % (" in lines[3]
    assert [line.split(" | ")[1] for line in controls_in_brief(runs, ("model",))[2:]] == ["`model`"]


def test_a_summary_of_unknown_latencies_has_no_share_of_late_packets(data: Data) -> None:
    unknown = {**data.forecasters["wifi"], "n": 0, "n_late": 0, "base_rate": None}
    assert forecasters.measured(unknown).endswith("all test slices: 0 packets, 0 of them late (share –).")


def test_variants_of_the_same_packets_join_a_published_entry(tmp_path: Path) -> None:
    path, scores = tmp_path / "forecasters.json", tmp_path / "scores.json"

    def take(*variants: str, mae: float = 0.5, **other: Any) -> dict[str, Any]:
        forms = {
            form: {"mae_ms": {"mean": mae, "less_reference": {"mean": 0.1}}, "pinball_ms": None}
            for form in ("tuned", "pretrained")
        }
        about = {"traces": ["t"], "protocol": "paper", "within_training": False, "against": "a"}
        packets = {"n": 9, "n_late": 3, "base_rate": 1 / 3}
        summary = {**about, **packets, **other, "variants": dict.fromkeys(variants, forms)}
        scores.write_text(json.dumps(summary))
        said = forecasters.take("kind", scores, path)
        found: dict[str, Any] = json.loads(path.read_text())["kind"]
        return {**found, "said": said}

    assert take("a")["said"] == f"{path}: kind is new"
    joined = take("a", "b", mae=0.7)  # measured again, as a whole
    assert joined["variants"]["a"]["tuned"]["mae_ms"]["mean"] == 0.7
    joined = take("a", "c", mae=0.9)
    assert joined["said"] == f"{path}: kind has a, b, c"
    assert [one["tuned"]["mae_ms"]["mean"] for one in joined["variants"].values()] == [0.7, 0.7, 0.9]
    assert "less_reference" not in joined["variants"]["c"]["tuned"]["mae_ms"]  # from another run of `a`
    assert joined["machine"].count("; c on 20") == 1
    for other in ({"n_late": 4}, {"choice": {"never_ms": 1.0}}):
        replaced = take("d", **other)
        assert list(replaced["variants"]) == ["d"]
        assert replaced["said"].endswith(f"takes the place of one whose {next(iter(other))} is another")
        take("a")
