"""`swiftqueue deploy`, `rollback` and `hold`: the registry's aliases follow what Triton really serves.

The champion alias moves only after the push succeeded, at every server where there are several. Each step is
in the deploy log.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from common import lock
from common.state import private_dir, state_dir
from models.registry import retention
from models.registry.decision import CONTENT_TAG
from models.registry.lineage import content_hash, git_commit
from models.registry.registry import CHALLENGER, CHAMPION, REPLACED_TAG, Registry
from models.registry.store import RegistryError, registry_exists
from serving.deploy import log as deploy_log
from serving.deploy.champion import Champion, find_champion
from serving.deploy.hold import HeldVersionError, held, hold
from serving.deploy.served_models import served_model
from serving.triton.config import Backend
from serving.triton.endpoint import Triton
from serving.triton.repository import LATENCY, ModelRepository
from serving.triton.servers import connected, each

NONE: Final = "none"
SHOWN: Final = 20  # versions in a message
LOCK_WAIT_S: Final = 120.0  # a push takes seconds, and Triton gives up a load after 60


class ChampionChangedError(ValueError):
    """The version was judged against another champion than the present one."""


def deploy_version(version: int | None, *, judged_against: int | None = None, kind: str = LATENCY) -> None:
    """Put a registered version in service and make it the champion.

    Without a number it is the challenger, if it passed the gate; what did not pass is never deployed. A
    version that is the champion and served already is left alone. While a version is held no other is
    deployed. `kind` is which model, as `--model` names it.

    Raises:
        HeldVersionError: a version is held, and another was asked for.
        ChampionChangedError: the champion is not `judged_against`, where that is given.
        ValueError: there is no such version, or it did not pass the gate.
        OSError: Triton or the registry does not answer.
        RuntimeError: the push failed; the champion goes on serving.
    """
    with _deployment(kind) as here:
        registry, found = here.registry, here.found_champion()
        champion = found.version
        if judged_against is not None and champion != judged_against:
            raise ChampionChangedError(
                f"version {version} was judged against champion {judged_against}; {champion} is champion now"
            )
        chosen = version if version is not None else registry.alias(CHALLENGER)
        if chosen is None:
            if champion is None:
                how = served_model(kind).made_by
                raise ValueError(f"the registry has no version to deploy; `{how}` makes one")
            chosen = champion
        _check_known(registry, chosen)
        if line := registry.refusal(chosen):
            if version is not None or champion is None:
                raise ValueError(line)
            print(f"{line}; it stays challenger and champion {champion} goes on serving")
            return
        if chosen == champion:
            here.ensure_served(chosen)
            if found.astray:
                registry.set_alias(CHAMPION, chosen)
            print(f"version {chosen} is the champion and served")
            return
        if kept := held(kind):
            if version is not None:
                raise HeldVersionError(str(kept))
            print(kept)
            return

        def name_champion() -> None:
            registry.set_tags(chosen, {REPLACED_TAG: str(champion or NONE)})
            registry.set_alias(CHAMPION, chosen)

        backend = here.put_in_service(chosen, "deploy", champion, name_champion)
        with _once_served(chosen):
            if registry.alias(CHALLENGER) == chosen:
                registry.remove_alias(CHALLENGER)
        with _once_served(chosen):
            here.retire(chosen, champion)
        before = f" (before: {champion})" if champion else ""
        print(f"version {chosen} is served by the {backend.label}{here.where()} and champion{before}")


def rollback_champion(
    *, and_hold: bool = False, of: int | None = None, why: str = "", kind: str = LATENCY
) -> None:
    """Put the previous champion back, in Triton and in the registry, and hold it if that is asked for.

    Where a version was held, the previous champion is held in its place.

    Args:
        and_hold: whether to hold the previous champion.
        of: version of the champion to replace; None means the present one.
        why: reason of an automatic rollback, for the deploy log.
        kind: the model: `latency`, `limit`, or one of a study.

    Raises:
        ChampionChangedError: the champion is not `of`.
        ValueError: there is no champion, or none before it, or the file of the hold is damaged.
        OSError: Triton or the registry does not answer.
        RuntimeError: the previous champion could not be served; the present one goes on.
    """
    with _deployment(kind) as here:
        registry, champion = here.registry, here.champion_to("roll back")
        if of is not None and champion != of:
            raise ChampionChangedError(f"version {of} was to be rolled back; {champion} is champion now")
        before = registry.tags(champion).get(REPLACED_TAG, NONE)
        if before == NONE:
            raise ValueError(f"champion {champion} replaced no other version, so there is none to go back to")
        if not before.isdecimal():
            raise ValueError(f"champion {champion} replaced version {before[:30]!r}, which is no version")
        previous = int(before)
        if line := registry.refusal(previous):
            raise ValueError(line)
        holds = and_hold or held(kind) is not None  # asked first: a damaged hold stops a deployment, too
        backend = here.put_in_service(
            previous, "rollback", champion, lambda: registry.set_alias(CHAMPION, previous), why
        )
        if holds:
            hold(previous, kind)
            print(held(kind))
        with _once_served(previous):
            here.retire(previous, champion)
        print(
            f"version {previous} is served by the {backend.label}{here.where()} and champion again "
            f"(rolled back from {champion})"
        )


def hold_champion(kind: str = LATENCY) -> None:
    """Hold the champion; a push that is under way ends first, and its version is held.

    Raises:
        ValueError: there is no champion.
        OSError: Triton or the registry does not answer.
    """
    with _deployment(kind) as here:
        hold(here.champion_to("hold"), kind)
        print(held(kind))


def serve_champion(kind: str = LATENCY) -> int | None:
    """Make every server serve a model's champion; return its version, or None without one.

    Raises:
        OSError: a server or the registry does not answer.
        RuntimeError: the champion could not be put in service.
    """
    if not registry_exists():
        return None
    with _deployment(kind) as here:
        version = here.found_champion().version
        if version is not None:
            here.ensure_served(version)
        return version


def prune_registry(model: str, keep: int) -> list[int]:
    """Remove versions that nobody needs (models/registry/retention.py), between two deployments.

    Raises:
        OSError: the registry does not answer, or a deployment does not end.
    """
    with lock.held(state_dir() / "deploy.lock", "another deployment", LOCK_WAIT_S):
        return retention.prune(Registry(model), keep)


@contextmanager
def _deployment(kind: str) -> Iterator[_Deployment]:
    """Yield the registry, servers and repository that a command needs, one command at a time."""
    model = served_model(kind)
    if not model.params_file.is_file():
        raise OSError(f"{model.params_file.absolute()}: no such file; run this in the project's folder")
    params = model.params()
    if not state_dir().exists():
        private_dir(state_dir())
    with connected() as servers:
        each(servers, lambda triton: triton.require_live())
        with lock.held(state_dir() / "deploy.lock", "another deployment", LOCK_WAIT_S):
            repository = ModelRepository(kind=kind)
            yield _Deployment(Registry(params.model_name), servers, repository, params.keep_versions)


@contextmanager
def _once_served(version: int) -> Iterator[None]:
    """Run the clean-up after a version is served; a failure is printed, and does not fail the push."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        print(f"version {version} is served, but not all is tidied up: {error}")


def _check_known(registry: Registry, version: int) -> None:
    try:
        registry.tags(version)  # not all versions: a deployment costs the same however many there are
    except RegistryError:
        known = registry.versions()
        if version in known:
            raise
        text = ", ".join(map(str, known[-SHOWN:])) or "none"
        raise ValueError(
            f"the registry has no version {version} of {registry.model} (versions: {text})"
        ) from None


@dataclass(frozen=True)
class _Deployment:
    """The registry, all servers, and the repository that they read."""

    registry: Registry
    servers: Sequence[Triton]
    repository: ModelRepository
    keep: int  # versions kept in the repository

    def found_champion(self) -> Champion:
        """Return the version to serve; print a line where the alias is not followed."""
        found = find_champion(self.registry, self.repository.kind)
        if found.astray:
            print(found.astray, flush=True)
        return found

    def champion_to(self, do: str) -> int:
        """Return the champion for a command, whose verb is `do`.

        Raises:
            ValueError: there is no champion.
        """
        if (version := self.found_champion().version) is None:
            which = "" if self.repository.kind == LATENCY else f" --model {self.repository.kind}"
            raise ValueError(f"there is no champion to {do}; `swiftqueue deploy{which}` makes one")
        return version

    def where(self) -> str:
        """Return the words after a backend's name where there are several servers."""
        return f" at all {len(self.servers)} servers" if len(self.servers) > 1 else ""

    def ensure_served(self, version: int) -> None:
        """Serve the champion again where it is not served: after a restart, or in an emptied repository."""
        from serving.deploy.push import served_content

        content = self.registry.tags(version).get(CONTENT_TAG)

        def serves_it(triton: Triton) -> bool:
            model = self.repository.model
            return triton.served_version(model) == version and served_content(triton, model) == content

        if not all(each(self.servers, serves_it)):
            self.put_in_service(version, "restore", version)

    def put_in_service(
        self,
        version: int,
        action: str,
        champion: int | None,
        name_champion: Callable[[], None] = lambda: None,
        why: str = "",
    ) -> Backend:
        """Fetch and push a version, name it champion and log it (a failure, too); return its backend.

        Where the registry does not take the alias, the servers go back, so that it names what they serve.
        """
        from serving.deploy.push import push

        begin = time.monotonic()
        registry, servers, repository = self.registry, self.servers, self.repository
        served = each(servers, lambda triton: triton.served_version(repository.model))
        # A failure goes back to this; a server that came back with another version joins in.
        previous = champion if champion in served else next((v for v in served if v is not None), None)
        details: dict[str, Any] = {
            **({} if repository.kind == LATENCY else {"kind": repository.kind}),
            "previous": previous,
            "git_commit": git_commit(Path.cwd()),
            # the servers' versions before
            "servers": {t.address: v for t, v in zip(servers, served, strict=True)},
        }
        try:
            details["registered"] = registry.registered(version)
            with tempfile.TemporaryDirectory() as temporary:
                source = registry.fetch(version, Path(temporary))
                details |= {"model": registry.model, "content": content_hash(source)}
                pushed = push(source, version, servers, repository, previous, name_champion)
        except (OSError, ValueError, RuntimeError) as error:
            with suppress(OSError):  # the disk is full too: the first failure counts
                deploy_log.append(action, version, "failed", reason=str(error), **details)
            raise
        seconds = round(time.monotonic() - begin, 3)
        details |= {"backend": str(pushed.backend), "largest_relative_difference": pushed.difference}
        if why:
            details["why"] = why
        if pushed.reason:
            details["reason"] = pushed.reason
        with _once_served(version):
            deploy_log.append(action, version, "served", seconds=seconds, **details)
        return pushed.backend

    def retire(self, champion: int, previous: int | None) -> None:
        """Remove the oldest versions beyond `keep`; never the champion or the one before it."""
        kept = {champion, previous}
        spare = [v for v in self.repository.versions() if v not in kept]
        for version in spare[: max(0, len(spare) + len(kept - {None}) - self.keep)]:
            self.repository.remove(version)
            print(f"version {version} is retired from Triton's repository (it stays in the registry)")
