"""Finds the version to serve: the target of the alias champion, if the gate passed it and we signed that.

Everybody who may write in the registry may move the alias. If it points to a version that may not be served,
it is not followed: the version that was last served from here (the deploy log) stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from swiftqueue.common import json_lines
from swiftqueue.models.registry.decision import CONTENT_TAG
from swiftqueue.models.registry.registry import CHAMPION, Registry
from swiftqueue.models.registry.store import RegistryError
from swiftqueue.serving.deploy import log as deploy_log
from swiftqueue.serving.triton.repository import LATENCY


@dataclass(frozen=True)
class Champion:
    """The version to serve, and a line about an alias that is not followed."""

    version: int | None  # None: there is none
    astray: str  # why the alias is not followed, in one line; empty if it is followed


def find_champion(registry: Registry, kind: str = LATENCY) -> Champion:
    """Return the version of a model that is to be served.

    Raises:
        RegistryError: the registry does not answer.
    """
    named = registry.alias(CHAMPION)
    if named is None or not (why := registry.refusal(named)):
        return Champion(named, "")
    version = _last_served(registry)
    stays = "there is none to serve instead" if version is None else f"version {version} stays champion"
    which = "" if kind == LATENCY else f"--model {kind} "
    mend = "" if version is None else f"; `swiftqueue deploy {which}--version {version}` sets it right"
    return Champion(
        version, f"the alias {CHAMPION} points to version {named} and is not followed ({why}): {stays}{mend}"
    )


def _last_served(registry: Registry) -> int | None:
    """Return the newest version of the deploy log that passed and is unchanged in the registry."""
    looked_at = set()
    for entry in json_lines.newest_first(deploy_log.log_file()):
        version = entry.get("version")
        known = entry.get("outcome") == "served" and entry.get("model") == registry.model
        if not known or not isinstance(version, int) or version in looked_at:
            continue
        looked_at.add(version)
        try:
            same = registry.tags(version).get(CONTENT_TAG) == entry.get("content")
            if same and not registry.refusal(version):
                return version
        except RegistryError:  # the version was deleted there
            continue
    return None
