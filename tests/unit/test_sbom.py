"""The bill of materials is that of the locks, and the locks name nothing but packages with their hashes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.sbom import FILE, LOCKS, bill_of_materials, packages_of

HASH = f"    --hash=sha256:{'ab' * 32}\n"


def test_it_names_what_the_locks_name(project: Path) -> None:
    """Read here word by word, without the program's own pattern."""
    named = {
        tuple(line.split()[0].split("=="))
        for lock in LOCKS
        for line in (project / lock).read_text().splitlines()
        if "==" in line and not line.startswith(("#", " "))
    }
    content = json.loads((project / FILE).read_text())
    assert {(c["name"], c["version"]) for c in content["components"]} == named
    assert len(content["components"]) == len(named) > 200
    assert {"torch", "ray", "numpy", "uv"} <= {c["name"] for c in content["components"]}
    assert content["bomFormat"] == "CycloneDX"
    assert "timestamp" not in content["metadata"]


@pytest.mark.slow
def test_the_committed_one_is_of_these_locks(project: Path) -> None:
    text = bill_of_materials([project / lock for lock in LOCKS])
    assert text == (project / FILE).read_text(), "run: make lock"
    subprocess.run([sys.executable, "-m", "infra.sbom", "--check"], cwd=project, check=True)


def test_it_follows_the_cyclonedx_schema(project: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str((project / FILE).read_text()) is None


@pytest.mark.parametrize(
    "line",
    [
        "evil @ https://example.org/evil.whl\n" + HASH,
        "--find_links https://example.org/\n".replace("_", "-"),
        "-e .\n",
        "-r other.txt\n",
        "evil==1.0\n",  # no hash
        "evil>=1.0 \\\n" + HASH,
        "good==1.0 \\\n" + HASH,  # twice
    ],
)
def test_a_lock_with_anything_else_is_refused(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("good==1.0 \\\n" + HASH)
    assert packages_of(lock) == {"good": "1.0"}
    lock.write_text(lock.read_text() + line)
    with pytest.raises(ValueError, match=r"x\.lock"):
        packages_of(lock)
