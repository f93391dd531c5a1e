"""Keeps the code that each stage of dvc.yaml depends on equal to what it imports.

Run it where a test says that they differ: `python -m pipelines.dependencies`.
What a stage reads under data/, simulation/ and testbed/ stands in dvc.yaml by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.import_closure import files_of

BY_HAND = ("data", "simulation", "testbed", "${item.file}")


def dependencies(name: str, stage: Any) -> list[str]:
    """Return what a stage of dvc.yaml depends on: its code, then what stands there by hand."""
    code = [str(path) for path in files_of(f"pipelines.{name}")]
    return [*code, "pipelines/run", *(dep for dep in stage["deps"] if dep.startswith(BY_HAND))]


def main() -> None:
    """Write the dependencies of every stage into dvc.yaml, and leave the rest as it is."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    path = Path("dvc.yaml")
    document = yaml.load(path)
    for name, stage in document["stages"].items():
        each = stage.get("do", stage)  # of a stage for each trace
        each["deps"] = dependencies(name, each)
    with path.open("w") as file:
        yaml.dump(document, file)


if __name__ == "__main__":
    main()
