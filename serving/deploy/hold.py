"""A held version: neither a round nor `deploy` replaces it until `swiftqueue release`.

The hold is a file of the state folder, `var/hold.json` (`var/hold-limit.json`), so it survives every restart.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from swiftqueue.common.atomic import write_durably
from swiftqueue.common.json_file import read_object
from swiftqueue.common.state import state_dir
from swiftqueue.serving.triton.repository import LATENCY


class HeldVersionError(ValueError):
    """A version is held, so no other takes its place."""


@dataclass(frozen=True)
class Hold:
    """The held version, and since when it is held."""

    version: int
    time: float  # seconds since the epoch
    kind: str = LATENCY

    def __str__(self) -> str:
        until = f"until {_release(self.kind)}"
        return f"version {self.version} is held, and no other takes its place {until}"


def _release(kind: str) -> str:
    return f"`swiftqueue release{'' if kind == LATENCY else f' --model {kind}'}`"


def hold_file(kind: str = LATENCY) -> Path:
    """Return the path of a model's hold; the file is missing where nothing is held."""
    return state_dir() / ("hold.json" if kind == LATENCY else f"hold-{kind}.json")


def held(kind: str = LATENCY) -> Hold | None:
    """Return the hold of a model; None where nothing is held.

    Raises:
        ValueError: the file is damaged; it holds until it is released.
    """
    try:
        found = read_object(hold_file(kind))
        return Hold(int(found["version"]), float(found["time"]), kind)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"{hold_file(kind)}: damaged, so nothing is deployed until {_release(kind)} ({error})"
        ) from error


def hold(version: int, kind: str = LATENCY) -> None:
    """Hold a version from now on; the hold is on the disk when this returns."""
    content = json.dumps(asdict(Hold(version, time.time(), kind))) + "\n"
    write_durably(hold_file(kind), content.encode(), mode=0o600)


def release(kind: str = LATENCY) -> bool:
    """Release the held version; return whether there was one."""
    was_held = hold_file(kind).is_file()
    hold_file(kind).unlink(missing_ok=True)
    return was_held
