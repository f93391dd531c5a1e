"""Parameters changed from the command line: `SECTION.KEY=VALUE`, checked against the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from swiftqueue.common.section import near
from swiftqueue.pipelines.params.document import parse_value

# Parameters that the command's own arguments set; `--set` would contradict them.
OWN_ARGUMENTS: Final = {
    "split.protocol": "use --protocol",
    "extract.traces": "name the captures on the command line",
    "register.trace": "a study does not register a model",
}


def override(params: Any, protocol: str, overrides: Sequence[str]) -> None:
    """Put a protocol and overrides into the document of params.yaml.

    Args:
        params: result of `load_yaml`; changed in place.
        protocol: name of the slice lengths (models/training/protocol.py).
        overrides: changes as `SECTION.KEY=VALUE`, with VALUE in YAML; later ones win.

    Raises:
        ValueError: the protocol is unknown, or an override names no parameter or has an invalid value.
    """
    from swiftqueue.models.training.protocol import protocol_named
    from swiftqueue.pipelines.params.sections import check

    protocol_named(protocol)
    params["split"]["protocol"] = protocol
    for one in overrides:
        _override(params, one)
    own = {name: params[name] for name in params if name != "extract"}  # a study has other traces
    check(json.loads(json.dumps(own, default=str)))  # a date is neither JSON nor a parameter


def _override(params: Any, override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot or not text.strip():
        raise ValueError(f"--set {override!r} is not of the form SECTION.KEY=VALUE")
    if section not in params:
        raise ValueError(f"--set {override}: there is no section {section!r}; {near(section, list(params))}")
    if name not in params[section]:
        known = near(name, list(params[section]))
        raise ValueError(f"--set {override}: there is no parameter {section}.{name}; {known}")
    if instead := OWN_ARGUMENTS.get(f"{section}.{name}"):
        raise ValueError(f"--set {override}: {instead}")
    params[section][name] = parse_value(text)
