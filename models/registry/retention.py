"""Which versions of the registry stay, so that it does not grow with the rounds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from models.registry.decision import REFERENCE_TAG
from models.registry.lineage import origin
from models.registry.registry import CHAMPION, REPLACED_TAG, Registry

BUDGET_S: Final = 10.0  # of one pruning: where there are thousands, the next round goes on
LINKS: Final = (REPLACED_TAG, "parent_version")


def spare(versions: Mapping[int, Mapping[str, str]], aliases: Mapping[str, int], keep: int) -> list[int]:
    """Versions that may go, oldest first.

    The last `keep` stay, those with an alias, so many generations of the champion's ancestors and of what it
    replaced, and the oldest version with the champion's encoder, which is the gate's reference.

    Args:
        versions: the tags of each.
        aliases: the version of each.
        keep: see there.
    """
    stay = {*sorted(versions)[-keep:], *aliases.values()}
    champion = aliases.get(CHAMPION)
    if champion is not None and champion in versions:
        for link in LINKS:
            stay |= set(_chain(versions, champion, link, keep))
        came_from = origin(versions[champion])
        stay.add(min(version for version, tags in versions.items() if origin(tags) == came_from))
        named = versions[champion].get(REFERENCE_TAG, "")
        stay |= {int(named)} if named.isdecimal() else set()
    return sorted(versions.keys() - stay)


def prune(registry: Registry, keep: int, budget_s: float = BUDGET_S) -> list[int]:
    """Remove what may go, as much of it as the time allows, and return it.

    Raises:
        RegistryError: the registry does not answer.
    """
    begin_s, removed = time.monotonic(), []
    for version in spare(registry.tags_by_version(), registry.aliases(), keep):
        if time.monotonic() - begin_s > budget_s:
            break
        registry.remove(version)
        removed.append(version)
    return removed


def _chain(
    versions: Mapping[int, Mapping[str, str]], version: int, link: str, generations: int
) -> Iterator[int]:
    """A version and those before it; one that is gone, or a circle, ends it."""
    for _ in range(generations + 1):
        if version not in versions:
            return
        yield version
        before = versions[version].get(link, "")
        if not before.isdecimal():
            return
        version = int(before)
