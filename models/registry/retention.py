"""Which versions of the registry stay, so that it does not grow with the rounds."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from common.redaction import redacted
from models.registry.decision import REFERENCE_TAG
from models.registry.lineage import origin
from models.registry.registry import CHAMPION, ITSELF, REPLACED_TAG, Registry
from models.registry.store import RegistryError, clear_errors, local_store, tracking_uri

BUDGET_S: Final = 10.0  # of one pruning: where there are thousands, the next round goes on
GRACE: Final = "1d"  # so long what was deleted can be restored, on MLflow's page too
GC_TIMEOUT_S: Final = 600.0
LINKS: Final = (REPLACED_TAG, "parent_version")


def spare(versions: Mapping[int, Mapping[str, str]], aliases: Mapping[str, int], keep: int) -> list[int]:
    """Return the versions that may go, oldest first.

    The last `keep` stay, those with an alias, so many generations of the champion's ancestors and of what it
    replaced, and the gate's reference: the version that the champion's encoder came with.

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
        named = versions[champion].get(REFERENCE_TAG, "")
        if named.isdecimal():
            stay.add(int(named))
        elif named != ITSELF:  # a round of an older program made it, which named none
            came_from = origin(versions[champion])
            stay.add(min(version for version, tags in versions.items() if origin(tags) == came_from))
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


def collect_garbage(older_than: str = "") -> int:
    """Free what deleted runs and models of the local store hold, by `mlflow gc`; return how many went.

    Of a store elsewhere nothing is freed: its operator calls `mlflow gc`, which needs the database.

    Args:
        older_than: how long ago it was deleted, as `mlflow gc` takes it; empty means GRACE.

    Raises:
        RegistryError: it failed, or did not end.
    """
    uri, artifacts = local_store()
    if tracking_uri() != uri:
        return 0
    command = [sys.executable, "-m", "mlflow", "gc", f"--older-than={older_than or GRACE}"]
    command += [f"--backend-store-uri={uri}", f"--tracking-uri={uri}"]
    with clear_errors("mlflow gc"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GC_TIMEOUT_S)
    if done.returncode != 0:
        line = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise RegistryError(f"mlflow gc: {redacted(line)}")
    gone = re.findall(r"with ID ([A-Za-z0-9-]+) has been permanently deleted", done.stdout)
    for name in gone:  # it leaves their folders, empty
        for folder in (artifacts / name, artifacts / "models" / name):
            with suppress(OSError):
                folder.rmdir()
    return len(gone)


def _chain(
    versions: Mapping[int, Mapping[str, str]], version: int, link: str, generations: int
) -> Iterator[int]:
    """Return a version and those before it; one that is gone, or a circle, ends it."""
    for _ in range(generations + 1):
        if version not in versions:
            return
        yield version
        before = versions[version].get(link, "")
        if not before.isdecimal():
            return
        version = int(before)
