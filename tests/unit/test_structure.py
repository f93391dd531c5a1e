"""The design's rules about structure: one stage, one name; one folder, one room; docs that are true."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

# docs/ARCHITECTURE.md: a room imports only from itself and from rooms above it; the command line from any.
ROOMS = [
    *("common", "feature_store", "models", "serving", "pipelines", "laboratory", "testbed"),
    *("infra.local", "infra.monitoring", "benchmarks", "infra", "swiftqueue"),
    "studies",  # below all, and none of them may be there
]
# All that a study may import: what a program outside the project could build on, too.
FACES = [
    *("common", "swiftqueue", "laboratory", "testbed.host", "serving.engine", "serving.deploy"),
    *("models.forecasters", "models.registry", "models.scoring", "models.training", "models.trees"),
    *("models.networks", "models.window", "models.sharp"),  # networks, and their artifacts
    *("feature_store", "benchmarks", "infra.local"),  # packets, published figures, what runs here
    *("pipelines.stage", "pipelines.simulators", "pipelines.live"),  # stages, and rounds of a model
    *("serving.triton", "serving.agent"),
]
STAGES_SHARE = {"__init__", "stage", "simulators"}
MODEL_ROOMS = [
    *("networks", "training", "scoring", "forecasters"),
    *("event_stream", "mlp", "trees", "virtual_queue", "repeated", "window", "registry"),
]
OWN_VARIABLE = re.compile(r"SWIFTQUEUE_[A-Z0-9_]*")
BIN = Path(sys.executable).parent
HEAVY = {"torch", "ray", "mlflow", "polars", "pandas", "numpy", "scapy", "great_expectations", "xgboost"}


def tracked(project: Path, *patterns: str) -> list[Path]:
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [project / p for p in out.split("\0") if p and (project / p).is_file()]


def test_stages_params_and_files_are_the_same_set(project: Path) -> None:
    stages = set(yaml.safe_load((project / "dvc.yaml").read_text())["stages"])
    sections = set(yaml.safe_load((project / "params.yaml").read_text()))
    files = {p.stem for p in (project / "pipelines").glob("*.py")} - STAGES_SHARE
    from swiftqueue.pipelines.params.sections import of_forecasters

    of_no_one_stage = {"architecture", "auto", "change", "live", *of_forecasters()}
    assert stages == (sections - of_no_one_stage) | {"pretrain"} == files


def stages_of(project: Path) -> dict[str, Any]:
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in stages.items()}


def test_each_stage_depends_on_its_own_file_and_section(project: Path) -> None:
    from swiftqueue.pipelines.params.sections import of_forecasters

    own, kinds = yaml.safe_load((project / "params.yaml").read_text()), of_forecasters()
    for name, stage in stages_of(project).items():
        assert f"pipelines/{name}.py" in stage["deps"]
        if name == "simulate":  # all but the seeds: each is a stage of its own
            assert stage["params"] == [f"{name}.{key}" for key in own[name] if key != "seeds"]
        elif name == "pretrain":  # the one that is chosen is trained
            choice = ["architecture", "auto", "change"]
            assert stage["params"] == [*choice, *(one for one in own if one in kinds)]
        elif name != "extract":  # whose command holds all that params.yaml says of its trace
            assert stage["params"][0] == name
        assert stage["cmd"].startswith(f"pipelines/run {name} ")


@functools.cache
def module_imports(project: Path) -> dict[str, set[str]]:
    """Our modules, and which of ours each imports, lazy imports counted."""
    folders = sorted({room.split(".")[0] for room in ROOMS})
    paths = [path for folder in folders for path in (project / folder).rglob("*.py")]
    names = {path: ".".join(path.relative_to(project).with_suffix("").parts) for path in paths}
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[name] |= {without_package(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                inner = {without_package(f"{node.module}.{alias.name}") for alias in node.names}
                found[name] |= inner & modules.keys() or {without_package(node.module)}
    return {name: imported & modules.keys() - {name} for name, imported in found.items()}


def without_package(module: str) -> str:
    """A room's module by the room's folder, which `swiftqueue/ROOM` leads to."""
    room = module.removeprefix("swiftqueue.")
    return room if room.split(".")[0] in {room.split(".")[0] for room in ROOMS} else module


def room_of(module: str) -> str:
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


@pytest.mark.slow
def test_a_room_imports_only_from_rooms_above_it(project: Path) -> None:
    for module, imported in module_imports(project).items():
        allowed = ROOMS[: ROOMS.index(room_of(module)) + 1]
        assert {room_of(one) for one in imported} <= set(allowed), module


@pytest.mark.slow
def test_only_the_settings_know_the_names_of_our_variables(project: Path) -> None:
    """Nobody else reads them; who starts a program with one asks `variable` for its name."""
    folders = sorted({room.split(".")[0] for room in ROOMS})
    paths = [path for folder in folders for path in (project / folder).rglob("*.py")]
    for path in (
        set(paths) - {project / "common/settings.py"} - set((project / "studies").glob("*/tests/**/*.py"))
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not OWN_VARIABLE.fullmatch(node.value), f"{path}: {node.value}"


def test_each_room_is_installed_and_checked(project: Path) -> None:
    settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]
    rooms = list(dict.fromkeys(room.split(".")[0] for room in ROOMS))
    installed = settings["setuptools"]["packages"]["find"]["include"]
    assert installed == ["swiftqueue*"]
    assert settings["mypy"]["packages"] == ["swiftqueue"]
    for room in set(rooms) - {"swiftqueue"}:
        assert (project / "swiftqueue" / room).readlink() == Path("..", room)


def test_rooms_are_imported_through_the_package(project: Path) -> None:
    """By its folder's name a module would be loaded twice, or another package's would come instead."""
    rooms = "|".join({room.split(".")[0] for room in ROOMS} - {"swiftqueue"})
    bare = re.compile(rf"^\s*(?:from|import) (?:{rooms})(?:\.|\s)", re.M)
    assert [path for path in tracked(project, "*.py") if bare.search(path.read_text())] == []


def test_nothing_outside_the_studies_imports_from_them(project: Path) -> None:
    outside = [
        path
        for path in tracked(project, "*.py", "*.cc", "*.h", "*.c", "*Makefile", "*.mk")
        if path.relative_to(project).parts[0] != "studies"
    ]
    begins = re.compile(
        r"^\s*(?:from|import) swiftqueue\.studies\b|#include .*\bstudies/|\bstudies/\w+/", re.M
    )
    assert [path for path in outside if begins.search(path.read_text())] == []


def test_documents_outside_the_studies_name_no_command_of_theirs(project: Path) -> None:
    """Without the folder they would be untrue; the log tells what was, and links may go there."""
    from swiftqueue.common.studies import declarations, served

    named = "|".join(study.NAME for study in declarations())
    command = re.compile(rf"swiftqueue (?:{named}) |--model (?:{'|'.join(served())})\b|dvc repro studies/")
    for document in documents(project):
        if not document.is_relative_to(project / "studies") and document.name != "LOG.md" and named:
            assert not [code for code in commands_in(document.read_text()) if command.search(code)], document


def test_a_study_imports_public_faces_and_no_other_study(project: Path) -> None:
    for module, imported in module_imports(project).items():
        if module.startswith("studies.") and ".tests" not in module:
            own = ".".join(module.split(".")[:2])
            foreign = {one for one in imported - {"studies"} if not f"{one}.".startswith(f"{own}.")}
            hidden = {one for one in foreign if not f"{one}.".startswith(tuple(f"{face}." for face in FACES))}
            assert hidden == set(), module


def without_studies(project: Path, folder: Path) -> None:
    """Make a checkout in which someone deleted the folder of studies."""
    for path in tracked(project):
        name = path.relative_to(project)
        if name.parts[0] != "studies":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / name)
    for link in filter(Path.is_symlink, (project / "swiftqueue").iterdir()):  # one leads nowhere
        shutil.copy2(link, folder / "swiftqueue", follow_symlinks=False)


def test_the_rooms_of_cpp_are_built_without_the_studies(project: Path, tmp_path: Path) -> None:
    """Make finds the sources of each in a fresh checkout: a dry run says what it would compile."""
    without_studies(project, tmp_path)
    (tmp_path / ".venv").symlink_to(project / ".venv")
    for room in sorted(path.parent.relative_to(project) for path in tracked(project, "*/Makefile")):
        if room.parts[0] != "studies":
            command = ["make", "-n", f"PYTHON={sys.executable}"]
            done = subprocess.run(command, cwd=tmp_path / room, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{room}: {done.stderr}"
            for made in re.findall(r" -o (\S+\.o) ", done.stdout):  # for rooms that link them
                (tmp_path / room / made).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / room / made).touch()


@pytest.mark.slow
def test_the_sources_pass_every_static_check(project: Path) -> None:
    """What `make lint` sees, CI sees."""
    environment = os.environ | {"PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    result = subprocess.run(
        [project / "infra/setup/lint.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_the_product_does_without_the_studies(project: Path, tmp_path: Path) -> None:
    """A checkout in which someone deleted the folder: its checks pass, and the command line starts."""
    without_studies(project, tmp_path)
    if (known := project / ".mypy_cache").is_dir():  # the test above made it: mypy looks anew at what differs
        shutil.copytree(known, tmp_path / ".mypy_cache")
    shown = "import swiftqueue.cli.app as cli; cli.app(['--help'])"
    for command in ([BIN / "ruff", "check", "."], [BIN / "mypy"], [sys.executable, "-c", shown]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    names = {path.parent.name for path in project.glob("studies/*/commands.py")}
    assert not names & set(re.findall(r"^\W*(\w+) ", done.stdout, re.M))


def test_the_documents_are_true_without_the_studies(project: Path, tmp_path: Path) -> None:
    without_studies(project, tmp_path)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)  # it lists the files
    assert documents(tmp_path)
    test_paths_and_links_of_the_documents_exist(tmp_path)


def test_the_table_of_rooms_names_folders_that_exist(project: Path) -> None:
    """Each room of the architecture's table, in the order that imports follow, with the folders inside."""
    text = (project / "docs/ARCHITECTURE.md").read_text()
    table = text.partition("\n## The rooms\n")[2].partition("\nTwo rooms stand apart")[0]
    rows = re.findall(r"^\| `([a-z_/]+)/` \|[^|]*\|([^|]*)\|$", table, re.M)
    assert [room.replace("/", ".") for room, _ in rows] == ROOMS[:-1]
    for room, cell in rows:
        for folder in re.findall(r"([a-z0-9_/]+)/", cell):
            assert (project / room / folder).is_dir() or (project / folder).is_dir(), f"{room}: {folder}"


def test_no_module_imports_itself_by_way_of_others(project: Path) -> None:
    graphlib.TopologicalSorter(module_imports(project)).prepare()  # raises CycleError, with the circle


def test_the_rooms_of_models_build_on_each_other(project: Path) -> None:
    """Networks, training and so on, as listed: each imports from those before it; lazily, too."""
    for path in (project / "models").rglob("*.py"):
        room = path.relative_to(project / "models").parts[0]
        allowed = MODEL_ROOMS[: MODEL_ROOMS.index(room) + 1] if room in MODEL_ROOMS else []
        imported = {
            m[1]
            for m in re.finditer(r"^\s*from swiftqueue\.models(?:\.| import )(\w+)", path.read_text(), re.M)
        }
        assert imported & set(MODEL_ROOMS) <= set(allowed), path
        assert imported <= {*MODEL_ROOMS, "sharp"}, path


@pytest.mark.parametrize("module", ["swiftqueue.cli.app", "swiftqueue"])
def test_the_command_line_and_the_library_start_without_heavy_imports(project: Path, module: str) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; print(*{{m.split('.')[0] for m in sys.modules}})"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not HEAVY & set(loaded)


def documents(project: Path) -> list[Path]:
    return [path for path in tracked(project, "*.md") if not path.is_relative_to(project / "tests")]


def commands_in(text: str) -> list[str]:
    """What a page shows as code: spans, fenced and indented lines, those that go on joined."""
    blocks = re.compile(r"^```[a-z]*\n(.*?)^```", re.M | re.S)
    fenced, text = blocks.findall(text), blocks.sub("", text)
    lines = "\n".join([*fenced, *re.findall(r"^ {4,}(\S.*)$", text, re.M)]).replace("\\\n", " ")
    return [*(line.split(" #")[0] for line in lines.splitlines()), *re.findall(r"`([^`\n]+)`", text)]


@functools.cache
def commands() -> dict[str, Any]:
    """Each command, `trace add` as well as `run`."""
    import typer
    from click import Command, Context
    from typer.core import TyperGroup

    from swiftqueue.cli.app import app

    none, found = Context(Command(None)), {}

    def walk(command: Any, name: str) -> None:
        if isinstance(command, TyperGroup):  # some import their commands when they are asked for
            for sub in command.list_commands(none):
                walk(command.get_command(none, sub), f"{name} {sub}".strip())
        else:
            found[name] = command

    walk(typer.main.get_command(app), "")
    return found


def test_the_help_of_every_command_has_an_example_of_it() -> None:
    without = [
        name
        for name, command in commands().items()
        if not command.hidden and not re.search(rf"Examples?: .*swiftqueue {name}\b", command.help)
    ]
    assert without == []


@pytest.mark.parametrize("group", ["", "lab", "trace", "part"])
def test_a_group_says_a_whole_sentence_of_each_command(group: str) -> None:
    from typer.testing import CliRunner

    from swiftqueue.cli.app import app

    said = CliRunner().invoke(app, [*group.split(), "--help"], terminal_width=80).output
    summaries = said.partition("\nCommands:\n")[2].splitlines()
    assert summaries
    assert not [line for line in summaries if line.endswith("...") or len(line) > 80]


def test_commands_of_the_documents_exist_with_their_options(project: Path) -> None:
    makefile = (project / "Makefile").read_text()
    flags = {
        name: {word for p in command.params for word in (*p.opts, *p.secondary_opts)}
        for name, command in commands().items()
    }
    groups = {name.split()[0] for name in flags if " " in name}
    history = project / "docs" / "LOG.md"  # it names commands of its time
    for document in documents(project):
        if document == history:
            continue
        for code in commands_in(document.read_text()):
            for said in re.findall(r"(?:^|bin/|&& |-- )swiftqueue ([a-z]+[^|&;#)]*)", code):
                words = said.split()
                name = " ".join(words[:2]) if words[0] in groups else words[0]
                if name in groups:
                    continue  # the group as a whole
                assert name in flags, f"{document}: swiftqueue {name}"
                unknown = {word for word in words if word.startswith("--")} - flags[name]
                assert not unknown - {"--help"}, f"{document}: swiftqueue {name} {unknown}"
            for target in re.findall(r"(?:^|[ &])make ([a-z][a-z-]*)(?=$|[ ;`])", code):
                assert re.search(rf"^{target}:", makefile, re.M), f"{document}: make {target}"
            for module in re.findall(
                r"python -m ((?:swiftqueue|infra|benchmarks|pipelines|serving)[a-z_.]*[a-z])", code
            ):
                path = project / module.replace(".", "/")
                assert path.with_suffix(".py").is_file() or path.is_dir(), f"{document}: {module}"


def test_benchmarks_that_the_documents_run_exist(project: Path) -> None:
    """A page may name one of an older commit in its text, but not among the lines to run."""
    from swiftqueue.cli.experiments import Benchmark

    for document in documents(project):
        named = set(re.findall(r"^ {4,}\S*swiftqueue bench ([a-z]+)", document.read_text(), re.M))
        assert named <= set(Benchmark), f"{document}: {named - set(Benchmark)}"


def test_paths_and_links_of_the_documents_exist(project: Path) -> None:
    # Made at run time, or the reader's own.
    written = ("data/", "var/", "build/", ".venv", "study-", "shared/", "../", "prometheus.io/")
    if not (project / "studies").is_dir():  # somebody deleted the folder; links may lead there, too
        written += ("studies/",)
    for document in documents(project):
        text = document.read_text()
        for path in re.findall(r"`([A-Za-z0-9_.-]+/[A-Za-z0-9_./-]*)`", text):
            if not path.startswith(written) and not re.search(r"[A-Z]{3,}|//|/_build/", path):
                near = [project / path, document.parent / path, project / "tests" / path]
                assert any(one.exists() for one in near), f"{document}: {path}"
        for path in re.findall(r"[( ](docs/[A-Za-z0-9_/-]+\.md)", text):
            assert (project / path).exists() or (document.parent / path).exists(), f"{document}: {path}"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            is_of_study = (document.parent / link).resolve().is_relative_to(project / "studies")
            if is_of_study and not (project / "studies").is_dir():
                continue  # somebody deleted the folder
            assert (document.parent / link).exists(), f"{document}: link {link}"
        for link, place in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", text):
            if link and not (document.parent / link).exists():
                continue  # in a study that was deleted, or a fault that was told above
            titles = re.findall(
                r"^#+ (.*)$", (document.parent / link if link else document).read_text(), re.M
            )
            anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert place in anchors, f"{document}: {link}#{place}"


def linked(index: Path) -> set[Path]:
    return {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)", index.read_text())}


def test_every_page_is_in_the_index(project: Path) -> None:
    """Or in its folder's, which is in the index. Decisions are listed by their folder."""
    index = project / "docs/README.md"
    for page in tracked(project, "docs/*.md"):
        own = page.parent / "README.md"
        if page != index and page.parent.name != "decisions" and page not in linked(index):
            assert own in linked(index), page
            assert page in linked(own), page


def test_documents_can_be_read_in_a_narrow_window(project: Path) -> None:
    """Tables, code and what is drawn from data may be wider, but not much."""
    drawn, fenced = re.compile(r"<!-- table: .*?<!-- end -->", re.S), re.compile(r"^```.*?^```", re.M | re.S)
    for document in documents(project):
        text = document.read_text()
        for line in text.splitlines():
            assert len(line) <= 160, f"{document}: {line}"
        for line in fenced.sub("", drawn.sub("", text)).splitlines():
            prose = re.sub(r"`[^`]*`", "", line)
            assert line.startswith(("|", "    ")) or len(prose) <= 120, f"{document}: {line}"
    readme = (project / "README.md").read_text().splitlines()
    assert len(readme) <= 90
    assert max(map(len, readme)) <= 120


def test_entries_of_the_log_are_short(project: Path) -> None:
    _, *entries = re.split(r"^## ", (project / "docs/LOG.md").read_text(), flags=re.M)
    for entry in entries:
        title, *lines = [line for line in entry.splitlines() if line]
        assert title == "Open" or re.match(r"20\d\d-\d\d-\d\d: \w", title), title
        assert title == "Open" or len(lines) <= 13, f"{title}: {len(lines)} lines"


def test_nothing_names_a_package_registry_or_is_large(project: Path) -> None:
    hosts = r"https?://[^ ]*(pypi|pythonhosted|crates\.io|npmjs|deb\.debian)"
    address = re.compile(rf"(extra-)?index-url|find-links|{hosts}")
    texts = {".py", ".lock", ".txt", ".toml", ".yaml", ".md", ".sh", ".in"}
    for path in tracked(project):
        assert path.stat().st_size < 1_500_000, f"{path} is large: data belongs to DVC"
        if path.suffix in texts and path != Path(__file__):
            assert not address.search(path.read_text()), path


def test_simulation_sources_carry_their_licence(project: Path) -> None:
    for path in tracked(project, "simulation/*.cc", "simulation/*.h"):
        assert "SPDX-License-Identifier: GPL-2.0-only" in path.read_text().splitlines()[0], path


def test_sources_of_the_test_bed_carry_their_licence(project: Path) -> None:
    """What the simulator compiles too has both licences, and includes nothing of the project but its like."""
    both = {f"testbed/router/{name}.h" for name in ("dual_pi2", "dual_queue", "lfq")}
    for path in tracked(project, "testbed/*.cc", "testbed/*.h", "testbed/*.c"):
        name = str(path.relative_to(project))
        text = path.read_text()
        licence = re.match(r"// SPDX-License-Identifier: (.*)", text)
        assert licence, path
        # The kernel takes programs that call its GPL helpers from GPL sources only.
        gpl_too = name in both or name.endswith(".bpf.c")
        assert licence[1] == ("Apache-2.0 OR GPL-2.0-only" if gpl_too else "Apache-2.0"), path
        assert not re.search(r'#include ".*simulation/', text), path
        if name in both:
            assert set(re.findall(r'#include "(.*)"', text)) <= {"dual_pi2.h"}, path


def test_every_locked_package_has_hashes(project: Path) -> None:
    for lock in project.glob("requirements*.lock"):
        text = lock.read_text()
        pins = re.findall(r"^([A-Za-z0-9_.\[\]-]+)==", text, re.M)
        assert pins
        assert len(re.findall(r"==[^\n]*\\\n    --hash=sha256:", text)) == len(pins), lock


def test_what_defends_us_has_its_test(project: Path) -> None:
    text = (project / "SECURITY.md").read_text()
    named = set(re.findall(r"`((?:unit|data|integration)/\w+\.py)`", text))
    assert len(named) > 10
    assert {name for name in named if not (project / "tests" / name).is_file()} == set()
    assert len(text.splitlines()) <= 100
    assert max(map(len, text.splitlines())) <= 120
