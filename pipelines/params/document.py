"""params.yaml edited by a program: comments, order and spelling of everything else stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from swiftqueue.common.atomic import new_file


class _Representer(RoundTripRepresenter):
    """A YAML writer that writes None as `null`, as the project's files spell it."""

    def represent_null(self, _: None) -> ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(type(None), _Representer.represent_null)


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.Representer = _Representer
    yaml.preserve_quotes = True
    yaml.width = 4096  # lines that were whole are never broken
    return yaml


def load_yaml(path: Path) -> Any:
    """Read a YAML file with its comments.

    Raises:
        ValueError: the file is missing or no YAML.

    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; run this in the project's folder")
    try:
        return _yaml().load(path)
    except YAMLError as error:
        first = " ".join(str(error).split())
        raise ValueError(f"{path}: not YAML: {first}") from None


def parse_value(text: str) -> Any:
    """Return one YAML value, as `--set` takes it; its spelling is lost.

    Raises:
        ValueError: the text is no YAML value.

    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        raise ValueError(f"{text!r} is no YAML value") from None


def save_yaml(path: Path, document: Any) -> None:
    """Write a YAML file atomically."""
    with new_file(path) as partial:
        _yaml().dump(document, partial)


def trace_entry(
    file: str, sender: str | None = None, latency: str = "acks", protocol: str | None = None
) -> CommentedMap:
    """Return an entry of `extract.traces`, on one line."""
    entry = CommentedMap(file=file, sender=sender, latency=latency)
    if protocol is not None:
        entry["protocol"] = protocol
    entry.fa.set_flow_style()
    return entry
