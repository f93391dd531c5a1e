"""`swiftqueue deploy` and `rollback`: registry aliases follow what Triton really serves.

The champion alias moves only after the push succeeded, at every server where there are several; each step is
in the deploy log.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from models.lineage import git_commit
from models.registry import CHALLENGER, CHAMPION, CONTENT_TAG, Registry, registry_exists
from models.state import state_dir
from pipelines.register import read_params
from pipelines.stage import StageError
from serving import deploy_log
from serving.endpoint import Triton
from serving.servers import connected, each
from serving.triton_config import Backend
from serving.triton_repository import ModelRepository

PARAMS_FILE: Final = Path("params.yaml")
REPLACED_TAG: Final = "replaced_version"  # the champion before this one: where a rollback goes
NONE: Final = "none"
LOCK_WAIT_S: Final = 120.0  # a push takes seconds, a load that Triton gives up 60
LOCK_LOOK_S: Final = 0.1


class ChampionChangedError(ValueError):
    """The champion is another than the one that the version was judged against."""


def deploy_version(version: int | None, *, judged_against: int | None = None) -> None:
    """Put a registered version in service and make it the champion.

    Without a number it is the challenger, if it passed the gate; what did not pass is never deployed. A
    version that is the champion and served already is left alone.

    Raises:
        ChampionChangedError: the champion is not `judged_against`, where that is given.
        ValueError: there is no such version, or it did not pass the gate.
        OSError: Triton or the registry does not answer.
        RuntimeError: the push failed; the champion goes on serving.
    """
    with _deployment() as (registry, servers, repository, keep):
        champion = registry.alias(CHAMPION)
        if judged_against is not None and champion != judged_against:
            raise ChampionChangedError(
                f"version {version} was judged against champion {judged_against}; {champion} is champion now"
            )
        chosen = version if version is not None else registry.alias(CHALLENGER)
        if chosen is None:
            if champion is None:
                raise ValueError("the registry has no version to deploy; `dvc repro register` makes one")
            chosen = champion
        tags = _tags(registry, chosen)
        if tags.get("gate") != "passed" and chosen != champion:
            line = f"version {chosen} did not pass the gate: {tags.get('gate_reason', 'it was never judged')}"
            if version is not None:
                raise ValueError(line)
            print(f"{line}; it stays challenger and champion {champion} goes on serving")
            return
        if chosen == champion:
            _ensure_served(chosen, registry, servers, repository)
            print(f"version {chosen} is the champion and served")
            return

        def name_champion() -> None:
            registry.set_tags(chosen, {REPLACED_TAG: str(champion or NONE)})
            registry.set_alias(CHAMPION, chosen)

        backend = _put_in_service(
            chosen, "deploy", champion, registry, servers, repository, name_champion=name_champion
        )
        with _once_served(chosen):
            if registry.alias(CHALLENGER) == chosen:
                registry.remove_alias(CHALLENGER)
        with _once_served(chosen):
            _retire(chosen, champion, keep, repository)
        before = f" (before: {champion})" if champion else ""
        print(f"version {chosen} is served by the {backend.label}{_where(servers)} and champion{before}")


def rollback_champion() -> None:
    """Put the previous champion back, in Triton and in the registry.

    Raises:
        ValueError: there is no champion, or none before it.
        OSError: Triton or the registry does not answer.
        RuntimeError: the previous champion could not be served; the present one goes on.
    """
    with _deployment() as (registry, servers, repository, keep):
        champion = registry.alias(CHAMPION)
        if champion is None:
            raise ValueError("there is no champion to roll back; `swiftqueue deploy` makes one")
        before = _tags(registry, champion).get(REPLACED_TAG, NONE)
        if before == NONE:
            raise ValueError(f"champion {champion} replaced no other version, so there is none to go back to")
        previous = int(before)
        backend = _put_in_service(
            previous,
            "rollback",
            champion,
            registry,
            servers,
            repository,
            name_champion=lambda: registry.set_alias(CHAMPION, previous),
        )
        with _once_served(previous):
            _retire(previous, champion, keep, repository)
        print(
            f"version {previous} is served by the {backend.label}{_where(servers)} and champion again "
            f"(rolled back from {champion})"
        )


def serve_champion() -> int | None:
    """Make every server serve the registry's champion; returns its version, or None without one.

    Raises:
        OSError: a server or the registry does not answer.
        RuntimeError: the champion could not be put in service.
    """
    if not registry_exists():
        return None
    with _deployment() as (registry, servers, repository, _):
        champion = registry.alias(CHAMPION)
        if champion is not None:
            _ensure_served(champion, registry, servers, repository)
        return champion


@contextmanager
def _deployment() -> Iterator[tuple[Registry, list[Triton], ModelRepository, int]]:
    """What every command here needs, one command at a time."""
    if not PARAMS_FILE.is_file():
        raise OSError(f"{PARAMS_FILE.absolute()}: no such file; run this in the project's folder")
    try:
        params = read_params(PARAMS_FILE)
    except StageError as error:
        raise ValueError(str(error)) from error
    keep = int(params["keep_versions"])
    state_dir().mkdir(parents=True, exist_ok=True)
    with connected() as servers:
        each(servers, lambda triton: triton.require_live())
        with _locked(state_dir() / "deploy.lock"):
            yield Registry(str(params["model_name"])), servers, ModelRepository(), keep


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock, waiting for it while another deployment may still end by itself.

    Raises:
        OSError: another one has it all the time.
    """
    deadline_s = time.monotonic() + LOCK_WAIT_S
    with path.open("ab+", buffering=0) as lock:
        while not _try_lock(lock.fileno()):
            if time.monotonic() > deadline_s:
                holder = os.pread(lock.fileno(), 100, 0).decode(errors="replace") or "unknown"
                raise OSError(
                    f"{path}: another deployment (pid {holder}) has held this lock for {LOCK_WAIT_S:g} s; "
                    "if it is stopped, continue it (kill -CONT) or end it, then deploy again"
                )
            time.sleep(LOCK_LOOK_S)
        with suppress(OSError):  # the disk is full: then nobody reads who holds it
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
        yield


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _once_served(version: int) -> Iterator[None]:
    """For what is left to do once a version is served: a failure there is said, and is none of the push."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        print(f"version {version} is served, but not all is tidied up: {error}")


def _tags(registry: Registry, version: int) -> dict[str, str]:
    if version not in (known := registry.versions()):
        text = ", ".join(map(str, known)) or "none"
        raise ValueError(f"the registry has no version {version} of {registry.model} (versions: {text})")
    return registry.tags(version)


def _ensure_served(
    version: int, registry: Registry, servers: Sequence[Triton], repository: ModelRepository
) -> None:
    """Serve the champion again where it is not: after a restart, or after the repository was emptied."""
    from serving.push import served_content, served_version

    content = registry.tags(version).get(CONTENT_TAG)

    def serves_it(triton: Triton) -> bool:
        return served_version(triton) == version and served_content(triton) == content

    if not all(each(servers, serves_it)):
        _put_in_service(version, "restore", version, registry, servers, repository)


def _put_in_service(
    version: int,
    action: str,
    champion: int | None,
    registry: Registry,
    servers: Sequence[Triton],
    repository: ModelRepository,
    *,
    name_champion: Callable[[], None] | None = None,
) -> Backend:
    """Fetch, push, name it champion, and log; a failure is logged too. Returns the backend that serves it.

    Where the registry does not take the name, the servers go back: what they serve is what it says.
    """
    from serving.push import DeployError, push, put_back, served_version

    begin = time.monotonic()
    served = each(servers, served_version)
    # What a failure goes back to; a server that had another version (it came back from somewhere) joins in.
    previous = champion if champion in served else next((v for v in served if v is not None), None)
    details: dict[str, Any] = {
        "previous": previous,
        "git_commit": git_commit(Path.cwd()),
        "servers": {t.address: v for t, v in zip(servers, served, strict=True)},  # and their versions before
    }
    try:
        details["registered"] = registry.registered(version)
        with tempfile.TemporaryDirectory() as temporary:
            source = registry.fetch(version, Path(temporary))
            pushed = push(source, version, servers, repository, previous)
        if name_champion is not None:
            try:
                name_champion()
            except OSError as error:
                after = put_back(previous, version, servers, repository)
                raise DeployError(f"version {version} is not deployed: {error}{after}") from error
    except (OSError, ValueError, RuntimeError) as error:
        with suppress(OSError):  # the disk is full too: what failed first is what counts
            deploy_log.append(action, version, "failed", reason=str(error), **details)
        raise
    seconds = round(time.monotonic() - begin, 3)
    details |= {"backend": str(pushed.backend), "largest_relative_difference": pushed.difference}
    if pushed.reason:
        details["reason"] = pushed.reason
    with _once_served(version):
        deploy_log.append(action, version, "served", seconds=seconds, **details)
    return pushed.backend


def _where(servers: Sequence[Triton]) -> str:
    return f" at all {len(servers)} servers" if len(servers) > 1 else ""


def _retire(champion: int, previous: int | None, keep: int, repository: ModelRepository) -> None:
    """Remove the oldest versions beyond `keep`; never the champion or the one before it."""
    kept = {champion, previous}
    spare = [v for v in repository.versions() if v not in kept]
    for version in spare[: max(0, len(spare) + len(kept - {None}) - keep)]:
        repository.remove(version)
        print(f"version {version} is retired from Triton's repository (it stays in the registry)")
