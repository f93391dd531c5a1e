"""The design's rules about structure: one stage, one name; one folder, one room; docs that are true."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

# docs/ARCHITECTURE.md: a folder imports only from folders above it; infra from any.
ROOMS = ["feature_store", "models", "pipelines", "serving", "infra"]
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
    files = {p.stem for p in (project / "pipelines").glob("*.py")} - {"__init__", "stage"}
    assert stages == sections == files


def test_each_stage_depends_on_its_own_file_and_section(project: Path) -> None:
    for name, stage in yaml.safe_load((project / "dvc.yaml").read_text())["stages"].items():
        assert f"pipelines/{name}.py" in stage["deps"]
        assert stage["params"] == [name]
        assert f"python -m pipelines.{name} " in stage["cmd"]


def imported_rooms(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_above_it(project: Path, room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in (project / room).rglob("*.py"):
        assert imported_rooms(path) <= allowed, path


def test_the_command_line_starts_without_heavy_imports(project: Path) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import infra.cli, sys; print(*{m.split('.')[0] for m in sys.modules})"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not HEAVY & set(loaded)


def test_the_flag_list_is_frozen(project: Path) -> None:
    """A changed flag changes what others' scripts rely on: change tests/unit/cli_flags.json knowingly."""
    import typer

    from infra.cli import app

    def flags(command: object) -> object:
        subcommands = getattr(command, "commands", None)
        if subcommands is not None:
            return {name: flags(sub) for name, sub in sorted(subcommands.items())}
        return [" ".join(p.opts) if p.param_type_name == "option" else p.name.upper() for p in command.params]  # type: ignore[attr-defined]

    frozen = json.loads((project / "tests/unit/cli_flags.json").read_text())
    assert flags(typer.main.get_command(app)) == frozen


def test_commands_and_paths_of_the_documents_exist(project: Path) -> None:
    import typer

    from infra.cli import app

    makefile = (project / "Makefile").read_text()
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    # Made at run time, or the reader's own.
    written = ("data/", "var/", "build/", ".venv", "studies/", "shared/", "../")
    for document in [project / "README.md", project / "CONTRIBUTING.md", *(project / "docs").glob("*.md")]:
        text = document.read_text()
        for target in re.findall(r"`make ([a-z][a-z-]*)", text):
            assert re.search(rf"^{target}:", makefile, re.M), f"{document.name}: make {target}"
        for command in re.findall(r"`(?:\.venv/bin/)?swiftqueue ([a-z]+)", text):
            assert command in commands, f"{document.name}: swiftqueue {command}"
        for path in re.findall(r"`([A-Za-z0-9_.-]+/[A-Za-z0-9_./-]*)`", text):
            if not path.startswith(written) and not re.search(r"[A-Z]{3,}|//", path):
                assert (project / path).exists(), f"{document.name}: {path}"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (document.parent / link).exists(), f"{document.name}: link {link}"


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


def test_every_locked_package_has_hashes(project: Path) -> None:
    for lock in project.glob("requirements*.lock"):
        text = lock.read_text()
        pins = re.findall(r"^([A-Za-z0-9_.\[\]-]+)==", text, re.M)
        assert pins
        assert len(re.findall(r"==[^\n]*\\\n    --hash=sha256:", text)) == len(pins), lock
