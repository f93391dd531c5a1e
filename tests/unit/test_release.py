"""`make release` hands out lists of the packages (SBOM) by cyclonedx-bom, beside wheel and agent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(sys.executable).parents[2]
TOOL = ROOT / ".venv-release" / "bin" / "cyclonedx-py"
ENVIRONMENTS = {"requirements.lock": ".venv", "requirements-triton.lock": ".venv-triton"}
UNSAID = {"nvidia-pytriton"}  # its metadata name no licence; it is Apache-2.0
needs_tool = pytest.mark.skipif(not TOOL.exists(), reason="no .venv-release: run `make setup-tests`")


def locked(file: Path) -> set[tuple[str, str]]:
    """Names and versions of a lock, without those that this machine does not need."""
    lines = [re.sub(r" \\$", "", line) for line in file.read_text().splitlines() if line[:1].isalnum()]
    needed = [one for one in map(Requirement, lines) if not one.marker or one.marker.evaluate()]
    return {(canonicalize_name(one.name), str(one.specifier).removeprefix("==")) for one in needed}


@needs_tool
@pytest.mark.long
def test_each_package_of_the_locks_is_listed_with_its_version(project: Path, tmp_path: Path) -> None:
    have = [f"--assume-old={folder}/.synced" for folder in (*ENVIRONMENTS.values(), ".venv-release")]
    # The check against the format takes half a minute of a core, and is a release's own.
    make = ["make", *have, f"DIST={tmp_path}", "SBOM_FLAGS=--no-validate", "sbom"]
    subprocess.run(make, cwd=project, check=True, capture_output=True)
    number = version("swiftqueue")
    made = [f"swiftqueue-{number}.cdx.json", f"swiftqueue-triton-{number}.cdx.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == made
    for lock, name in zip(ENVIRONMENTS, made, strict=True):
        text = (tmp_path / name).read_text()
        assert str(project) not in text  # where it was built is nobody's matter
        bom: dict[str, Any] = json.loads(text)
        listed = {(canonicalize_name(one["name"]), one["version"]) for one in bom["components"]}
        assert locked(project / lock) <= listed
        without = {one["name"] for one in bom["components"] if not one.get("licenses")} - UNSAID
        assert len(without) < len(listed) / 10, without
    assert json.loads((tmp_path / made[0]).read_text())["metadata"]["component"]["name"] == "swiftqueue"


def test_the_lists_tool_is_pinned_with_hashes_and_no_part_of_the_loop(project: Path) -> None:
    (wanted,) = re.findall(
        r"^(cyclonedx-bom==\S+)$", (project / "infra/setup/requirements-release.in").read_text(), re.M
    )
    lock = (project / "requirements-release.lock").read_text()
    assert re.search(rf"^{re.escape(wanted)} \\\n    --hash=sha256:", lock, re.M)
    for name in ENVIRONMENTS:
        assert "cyclonedx-bom" not in (project / name).read_text()
