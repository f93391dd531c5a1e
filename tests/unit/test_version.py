"""One version: the command, the wheel, the citation, the changelog and the image say the same."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

from swiftqueue import version
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.feature_store.events.definition import EVENTS


def number(project: Path) -> str:
    return str(tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"])


def test_the_command_prints_number_commit_and_schema(project: Path) -> None:
    ran = subprocess.run([SWIFTQUEUE, "--version"], cwd="/", capture_output=True, text=True, check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True
    ).stdout[:12]
    wanted = rf"swiftqueue {re.escape(number(project))}, commit {commit}(\+dirty)?, schema "
    assert re.fullmatch(wanted + EVENTS.schema_hash[:12] + "\n", ran.stdout)


def test_a_wheel_names_the_commit_that_it_was_built_from(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "commit.txt"
    file.write_text("0123456789ab+dirty\n")
    monkeypatch.setattr(version, "COMMIT_FILE", file)
    assert version.commit() == "0123456789ab+dirty"


def test_every_file_that_names_the_version_names_this_one(project: Path) -> None:
    own = number(project)
    assert yaml.safe_load((project / "CITATION.cff").read_text())["version"] == own
    assert f"\n## {own}\n" in (project / "CHANGELOG.md").read_text()
    for page in (project / "infra/README.md", *(project / "infra/k8s").glob("*.yaml")):
        for image in re.findall(r"(?:REGISTRY/)?swiftqueue:(\d[\w.]*)", page.read_text()):
            assert image == own, page


def test_the_citation_has_what_the_format_asks_for(project: Path) -> None:
    citation = yaml.safe_load((project / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    (paper,) = citation["references"]
    assert "2410.06112" in paper["url"]
