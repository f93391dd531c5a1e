"""Remove versions from the registry, so that it does not grow with the rounds."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from swiftqueue.common.redaction import redacted
from swiftqueue.models.registry.decision import REFERENCE_TAG
from swiftqueue.models.registry.lineage import origin
from swiftqueue.models.registry.registry import CHAMPION, ITSELF, REPLACED_TAG, Registry
from swiftqueue.models.registry.store import RegistryError, clear_errors, local_store, tracking_uri

BUDGET_S: Final = 10.0  # seconds of one pruning; the next round continues
GRACE: Final = "1d"  # time in which deleted versions can be restored, on MLflow's page too
GC_TIMEOUT_S: Final = 600.0
LINKS: Final = (REPLACED_TAG, "parent_version")


def spare(versions: Mapping[int, Mapping[str, str]], aliases: Mapping[str, int], keep: int) -> list[int]:
    """Return the versions that may be removed, oldest first.

    These stay: the last `keep`, versions with an alias, `keep` generations of the champion's ancestors and of
    the versions it replaced, and the gate's reference, with which the champion's encoder came.

    Args:
        versions: tags by version.
        aliases: version by alias.
        keep: number of newest versions that stay.
    """
    stay = {*sorted(versions)[-keep:], *aliases.values()}
    champion = aliases.get(CHAMPION)
    if champion is not None and champion in versions:
        for link in LINKS:
            stay |= set(_chain(versions, champion, link, keep))
        named = versions[champion].get(REFERENCE_TAG, "")
        if named.isdecimal():
            stay.add(int(named))
        elif named != ITSELF:  # a round of an older program named no reference
            came_from = origin(versions[champion])
            stay.add(min(version for version, tags in versions.items() if origin(tags) == came_from))
    return sorted(versions.keys() - stay)


def prune(registry: Registry, keep: int, budget_s: float = BUDGET_S) -> list[int]:
    """Remove the versions that may go, as many as time allows, and return them.

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
    """Free the files of deleted runs and models of the local store by `mlflow gc`; return their number.

    It frees nothing in a remote store: its operator calls `mlflow gc`, which needs the database.

    Args:
        older_than: least time since the deletion, as `mlflow gc` takes it; empty means GRACE.

    Raises:
        RegistryError: `mlflow gc` failed, or did not end.
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
    for name in gone:  # `mlflow gc` leaves their folders empty
        for folder in (artifacts / name, artifacts / "models" / name):
            with suppress(OSError):
                folder.rmdir()
    return len(gone)


def _chain(
    versions: Mapping[int, Mapping[str, str]], version: int, link: str, generations: int
) -> Iterator[int]:
    """Yield a version and those before it, until one is missing or a circle closes."""
    for _ in range(generations + 1):
        if version not in versions:
            return
        yield version
        before = versions[version].get(link, "")
        if not before.isdecimal():
            return
        version = int(before)
