"""Keeps what each stage of DVC depends on equal to what it imports, and to the sections that it reads.

Run it where a test says that they differ: `python -m pipelines.dependencies`.
What a stage reads under data/, simulation/ and testbed/ stands in its file by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.import_closure import files_of
from models.networks.loop_network import named, names

FILES = ("dvc.yaml", "data/long/dvc.yaml")
BY_HAND = ("data", "simulation", "testbed", "${item.file}")


def dependencies(stage: Any) -> list[str]:
    """Return what a stage depends on: its command's code, then what stands there by hand."""
    named = stage["cmd"].split()[1]
    code = [str(path) for path in files_of(named if "." in named else f"pipelines.{named}")]
    return [*code, "pipelines/run", *(dep for dep in stage["deps"] if dep.startswith(BY_HAND))]


def parameters() -> dict[str, list[str]]:
    """Parameters of the stages that read a section of each network of the loop, by stage."""
    networks = [named(name) for name in names()]
    of = [(one, one.params().section) for one in networks]
    rows = [f"{section}.{key}" for one, section in of for key in one.row_keys]
    others = [section for _, section in of if section != "pretrain"]
    return {
        "windows": ["windows", "extract.traces", "architecture", "split.protocol", *rows],
        "pretrain": ["pretrain", "architecture", "change", *others],
    }


def main() -> None:
    """Write what every stage depends on into its file, and leave the rest as it is."""
    from ruamel.yaml import YAML

    read = parameters()
    yaml = YAML()
    yaml.width = 4096
    for path in map(Path, FILES):
        document = yaml.load(path)
        for name, stage in document["stages"].items():
            each = stage.get("do", stage)  # of a stage for each trace
            each["deps"] = dependencies(each)
            if name in read and list(each["params"]) != read[name]:  # else a comment there stays
                each["params"][:] = read[name]
        with path.open("w") as file:
            yaml.dump(document, file)


if __name__ == "__main__":
    main()
