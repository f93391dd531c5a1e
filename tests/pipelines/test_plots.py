"""`dvc plots` of two revisions: a page that needs no net, drawn by the project's own template."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

# What a browser does with the page's scripts, as far as they ask for it; prints what was drawn.
BROWSER = """
const html = require("fs").readFileSync(process.argv[1], "utf8"), drawn = {};
const vm = require("vm"), found = (id) => drawn[id] ??= {innerHTML: ""};
const page = vm.createContext({document: {querySelector: found}});
for (const [, script] of html.matchAll(/<script[^>]*>([^]*?)<\\/script>/g)) vm.runInContext(script, page);
console.log(Object.values(drawn).map((one) => one.innerHTML).join("\\n"));
"""


@pytest.fixture
def page(project: Path, tmp_path: Path) -> Path:
    """The page of two revisions that differ in one of two methods."""
    shutil.copytree(project / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    plots = yaml.safe_load((project / "dvc.yaml").read_text())["plots"]
    table = "data/evaluation/plots/error_by_horizon.csv"
    ((name, plot),) = next(one for one in plots if "Error by horizon" in next(iter(one))).items()
    shown = plot | {"y": {table: ["finetuned", "last_flow"]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"plots": [{name: shown}]}))

    def run(*command: str) -> None:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    run("git", "init", "--quiet")
    for revision, error in (("one", 3.5), ("two", 2.5)):
        (tmp_path / table).parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{place},{error + place / 10},4.25" for place in range(1, 9)]
        (tmp_path / table).write_text("\n".join(["place,finetuned,last_flow", *rows, "9,,"]) + "\n")
        run("git", "add", "--all")
        run("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", revision)
        run("git", "tag", revision)
    run(sys.executable, "-m", "dvc", "plots", "diff", "one", "two", "--out", "page")
    return tmp_path / "page" / "index.html"


def test_the_page_asks_the_net_for_nothing(page: Path) -> None:
    html = page.read_text()
    assert "vegaEmbed(" in html
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=|@import|fetch\(|import\(", html)
    assert loaded == []


def test_each_line_of_each_revision_is_drawn(page: Path) -> None:
    if not (node := shutil.which("node")):
        pytest.skip("node, which runs the page's script here, is not installed")
    ran = subprocess.run([node, "-e", BROWSER, str(page)], capture_output=True, text=True, check=True)
    charts = re.findall(r"<figure>.*?</figure>", ran.stdout, re.S)
    assert [re.findall(r"finetuned|last_flow", chart) for chart in charts] == [["finetuned"], ["last_flow"]]
    lines = [re.findall(r'<polyline points="(.*?)"', chart) for chart in charts]
    assert [[len(line.split()) for line in chart] for chart in lines] == [
        [8, 8],
        [8, 8],
    ]  # nothing of place 9
    assert lines[0][0] != lines[0][1]
    assert lines[1][0] == lines[1][1]
    assert {"one", "two"} <= set(re.findall(r"</b> (\w+)</span>", ran.stdout))
    assert "mean absolute error, ms" in ran.stdout
    assert not re.search("NaN|undefined", ran.stdout)
