"""Keeps what each stage of DVC depends on equal to what it imports, and to the sections that it reads.

Run it where a test says that they differ: `python -m pipelines.dependencies`.
What a stage reads under data/, simulation/ and testbed/ stands in its file by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.import_closure import files_of
from common.section import read_all
from models.forecasters.forecaster import kinds

PROJECT = Path(__file__).resolve().parent.parent
OF_STUDIES = sorted(str(file.relative_to(PROJECT)) for file in PROJECT.glob("studies/*/dvc.yaml"))
FILES = ("dvc.yaml", "data/long/dvc.yaml", *OF_STUDIES)
BY_HAND = ("data", "simulation", "testbed", "${item.file}")


def dependencies(stage: Any) -> list[str]:
    """Return what a stage depends on: its command's code, then what stands there by hand."""
    named = stage["cmd"].split()[1]
    code = [str(path) for path in files_of(named if "." in named else f"pipelines.{named}")]
    return [*code, "pipelines/run", *(dep for dep in stage["deps"] if dep.startswith(BY_HAND))]


def trained_by(project: Path) -> list[str]:
    """Return the sections that stage pretrain reads: the choice, and all that may be chosen."""
    own = read_all(project / "params.yaml")
    return ["architecture", "change", *(name for name in own if name in kinds())]


def main() -> None:
    """Write what every stage depends on into its file, and leave the rest as it is."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    for path in map(Path, FILES):
        document = yaml.load(path)
        for stage in document["stages"].values():
            each = stage.get("do", stage)  # of a stage for each trace
            each["deps"] = dependencies(each)
        if pretrain := document["stages"].get("pretrain"):
            pretrain["params"][:] = trained_by(Path())
        with path.open("w") as file:
            yaml.dump(document, file)


if __name__ == "__main__":
    main()
