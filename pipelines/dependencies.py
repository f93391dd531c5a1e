"""The dependencies of each DVC stage in dvc.yaml, derived from its imports and the sections that it reads.

Run it where a test finds a difference: `python -m pipelines.dependencies`. A stage's dependencies under
data/, simulation/ and testbed/ are kept by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.import_closure import files_of
from common.section import read_all
from models.forecasters.forecaster import kinds

FILES = ("dvc.yaml", "data/long/dvc.yaml")
BY_HAND = ("data", "simulation", "testbed", "${item.file}")


def dependencies(stage: Any) -> list[str]:
    """Return the dependencies of a stage: the code of its command, then the entries kept by hand."""
    named = stage["cmd"].split()[1]
    code = [str(path) for path in files_of(named if "." in named else f"pipelines.{named}")]
    return [*code, "pipelines/run", *(dep for dep in stage["deps"] if dep.startswith(BY_HAND))]


def trained_by(project: Path) -> list[str]:
    """Return the sections that stage pretrain reads: the choice, and every section that may be chosen."""
    own = read_all(project / "params.yaml")
    return ["architecture", "change", *(name for name in own if name in kinds())]


def main() -> None:
    """Write the dependencies of every stage into its file, and leave the rest as it is."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    for path in map(Path, FILES):
        document = yaml.load(path)
        for stage in document["stages"].values():
            each = stage.get("do", stage)  # a stage for each trace has its command under `do`
            each["deps"] = dependencies(each)
        if pretrain := document["stages"].get("pretrain"):
            pretrain["params"][:] = trained_by(Path())
        with path.open("w") as file:
            yaml.dump(document, file)


if __name__ == "__main__":
    main()
