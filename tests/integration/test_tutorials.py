"""Every command block of the tutorials is run, word for word, in a checkout of its own.

Blocks that take minutes are run by `make test-all` alone, in the order of the pages, from `make run` on; its
traces are short there. `make test` runs the others: a served model of the fixtures stands for `make run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mutants
import psutil
import pytest
from fault_loop import PORTS
from of_state import processes_of
from toy_world import bottleneck_table, write_table

from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.site.notebook import capture

pytestmark = pytest.mark.slow

PAGES = (
    *(
        "first-run",
        "your-own-capture",
        "change-the-model",
        "sweep-and-compare",
        "laboratory",
        "marked-packets",
    ),
    *("live-loop", "add-an-input"),
)
BLOCK = re.compile(r"(\*This takes minutes\.\*\n\n)?^```sh\n(.*?)^```$", re.M | re.S)
ACTIVATE = ". .venv/bin/activate\n"
DOWN = "make down\n"  # ends the servers, which other tests share in `make test`
# Runs a notebook's cells one after the other, and prints what each ends with.
CELLS = """
import ast, json, sys
from pathlib import Path
space = {}
for cell in json.loads(Path(sys.argv[1]).read_text())["cells"]:
    if cell["cell_type"] == "code":
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), space)
        if last is not None:
            print(eval(compile(ast.Expression(last.value), "cell", "eval"), space))
"""


def blocks(project: Path, page: str, *, minutes: bool) -> list[str]:
    """Command blocks of a tutorial; without `minutes` those alone that are quick."""
    text = (project / "docs/tutorials" / f"{page}.md").read_text()
    return [code for long, code in BLOCK.findall(text) if minutes or not long]


def checkout(project: Path, folder: Path) -> Path:
    """A repository of the tracked files, with this environment and what was built."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (project / name).exists() or (project / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project / name, folder / name, follow_symlinks=False)
    # Older than the environment, or `make` would install anew into the one that all share.
    for name in ("requirements.lock", "requirements-triton.lock", "pyproject.toml", "infra/setup/uv.lock"):
        os.utime(folder / name, (0, 0))
    for environment in (".venv", ".venv-triton"):
        if (project / environment).is_dir():
            (folder / environment).symlink_to(project / environment)
    for made in [*project.glob("*/_build"), *project.glob("*/*/_build"), *project.glob("*/*/*/_build")]:
        if made.relative_to(project).parts[0] not in ("swiftqueue", "build", ".venv"):  # the first has links
            shutil.copytree(
                made, folder / made.relative_to(project), symlinks=True, copy_function=shutil.copy2
            )
    if (project / "build/simulation").is_dir():
        shutil.copytree(project / "build/simulation", folder / "build/simulation", copy_function=shutil.copy2)
    for words in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "all"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def run(folder: Path, code: list[str], environment: dict[str, str]) -> str:
    """Run blocks in one shell, as a reader does; what they leave in the background is ended."""
    script = "set -euo pipefail\nset -m\n" + "\n".join(code)
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | environment | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate()
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == shell.pid:
                    process.send_signal(signal.SIGKILL)
    assert shell.returncode == 0, f"{said[-4000:]}\nof the blocks:\n{script}"
    return said


def test_every_tutorial_is_run(project: Path) -> None:
    there = {path.stem for path in (project / "docs/tutorials").glob("*.md")} - {"README"}
    assert there == set(PAGES)
    for page in PAGES:
        text = (project / "docs/tutorials" / f"{page}.md").read_text()
        fenced = re.findall(r"^```(\w*)$", text, re.M)
        assert set(fenced) == {"sh", ""}, f"{page}: a block that no test runs"
        assert blocks(project, page, minutes=True), page


@pytest.fixture(scope="module")
def quick(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a short trace and a capture, where a reader would have those of `make run`."""
    folder = checkout(project, tmp_path_factory.mktemp("checkout"))
    write_table(folder / "data/packets", bottleneck_table("dumbbell-1", seconds=12))
    shutil.move(capture(project, tmp_path_factory.mktemp("capture")), folder / "office.pcap")
    return folder


@pytest.mark.parametrize(
    "page", ["first-run", "your-own-capture", pytest.param("marked-packets", marks=pytest.mark.long)]
)
def test_the_first_tutorials_run(
    project: Path, quick: Path, champion: int, serving_state: Path, page: str
) -> None:
    code = [block for block in blocks(project, page, minutes=False) if block != DOWN]
    said = run(quick, [ACTIVATE, *code], {})
    if page == "first-run":
        assert f"version {champion}" in said
        assert "batches of 8 packets" in said
    elif page == "marked-packets":
        (decided,) = re.findall(r"^(\d+) of 50 batches were decided in time", said, re.M)
        assert int(decided) > 0
    else:
        assert "average_precision" in said
        assert (quick / "forecasts.png").stat().st_size > 10_000


def test_the_notebook_runs_as_a_script(
    project: Path, quick: Path, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Its cells in order, in a folder that is nobody's project; the site's build runs it in a kernel."""
    notebook = project / "docs/tutorials/capture-to-forecast.ipynb"
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells), "outputs are not kept"
    code = "\n".join("".join(cell["source"]) for cell in cells)
    public = set(re.findall(r"swiftqueue\.(\w+)", code))
    assert public >= {"read_capture", "events", "load_model", "scores", "plot", "model_card"}
    environment = os.environ | {
        "PYTHONPATH": str(project),
        "CAPTURE": str(quick / "office.pcap"),
        "MODEL": str(make_artifact(3)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", CELLS, notebook],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "recall_at_1_percent" in ran.stdout
    assert "## Network" in ran.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A checkout whose traces are short, with ports and state of its own."""
    folder = checkout(project, tmp_path_factory.mktemp("whole"))
    params = (folder / "params.yaml").read_text()
    shorter = (
        ("duration_s: 72", "duration_s: 40"),
        ("seeds: [1, 2, 401, 402, 403, 404]", "seeds: [1, 2]"),
        ("  epochs: 16", "  epochs: 1"),
        ("max_shift_psi: 4.0", "max_shift_psi: 40.0"),
    )
    for was, now in shorter:
        assert was in params, was
        params = params.replace(was, now)
    params = re.sub(r"    dumbbell-40\d: .*\n", "", params)
    (folder / "params.yaml").write_text(params)
    identity = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*identity, "commit", "--quiet", "--all", "-m", "short"], cwd=folder, check=True)
    environment = {name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)}
    environment |= {"SWIFTQUEUE_STATE": str(folder / "var"), "MLFLOW_TRACKING_URI": "", "RAY_ADDRESS": ""}
    yield folder, environment
    subprocess.run(["make", "down"], cwd=folder, env=os.environ | environment, check=False)
    for process in processes_of(folder / "var"):
        process.kill()


@pytest.mark.timeout(3600)  # `make run` alone takes as long as a test may, on a busy machine
@pytest.mark.skipif(not mutants.ALL, reason="an hour: with SWIFTQUEUE_TEST_ALL=1")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_tutorial_runs(project: Path, whole: tuple[Path, dict[str, str]], page: str) -> None:
    folder, environment = whole
    run(folder, [ACTIVATE, *blocks(project, page, minutes=True)], environment)
