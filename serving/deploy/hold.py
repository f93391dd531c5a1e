"""A held version: neither a round nor `deploy` replaces it until `swiftqueue release`.

The hold is a file of the state folder, `var/hold.json`, so it survives every restart.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from feature_store.atomic import write_durably
from feature_store.state import state_dir
from models.json_file import read_object


class HeldVersionError(ValueError):
    """A version is held, so no other takes its place."""


@dataclass(frozen=True)
class Hold:
    """What is held, and since when."""

    version: int
    time: float  # seconds since the epoch

    def __str__(self) -> str:
        return f"version {self.version} is held, and no other takes its place until `swiftqueue release`"


def hold_file() -> Path:
    """Path of the hold; not there where nothing is held."""
    return state_dir() / "hold.json"


def held() -> Hold | None:
    """What is held; None where nothing is.

    Raises:
        ValueError: the file is none of ours; it holds until it is released.
    """
    try:
        found = read_object(hold_file())
        return Hold(int(found["version"]), float(found["time"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"{hold_file()}: damaged, so nothing is deployed until `swiftqueue release` ({error})"
        ) from error


def hold(version: int) -> None:
    """Hold a version from now on; it is on the disk when this returns."""
    content = json.dumps(asdict(Hold(version, time.time()))) + "\n"
    write_durably(hold_file(), content.encode(), mode=0o600)


def release() -> bool:
    """Hold nothing any more; whether something was held."""
    was_held = hold_file().is_file()
    hold_file().unlink(missing_ok=True)
    return was_held
