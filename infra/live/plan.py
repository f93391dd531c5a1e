"""What `swiftqueue up --live` was asked for, what ought to run, and where the parts meet."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from models.state import state_dir

# Population stability index of an input beyond which a full re-train is due. Stretches of the same simulated
# traffic differ by up to 0.8, its first half minute from the rest by 2.8 to 4.6 (docs/LIVE.md).
DRIFT: Final = 1.5


@dataclass(frozen=True)
class Live:
    """What `up --live` was asked for."""

    trace: str  # a trace of data/packets, or a packet-table folder
    speed: float  # of the replay, times real time
    every_s: float
    learn_s: float
    judge_s: float
    drift: float = DRIFT
    retrain: bool = False  # when the inputs have drifted; else it is only proposed

    def __post_init__(self) -> None:
        """Raise ValueError where a number is not above zero."""
        for option, value in (
            ("--speed", self.speed),
            ("--every", self.every_s),
            ("--learn", self.learn_s),
            ("--judge", self.judge_s),
            ("--drift", self.drift),
        ):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{option} {value}: must be above 0")


def asked() -> Live | None:
    """What the last `up --live` was asked for; None when there was none since the last `down`."""
    try:
        return Live(**json.loads(asked_file().read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{asked_file()}: not what `up --live` writes ({error}); remove it") from error


def write_asked(live: Live) -> None:
    """Write down what `up --live` was asked for, in one step: keeper and `status` read it at any time."""
    partial = asked_file().with_suffix(".partial")
    partial.write_text(json.dumps(asdict(live)) + "\n")
    partial.replace(asked_file())


def wanted() -> list[str]:
    """Parts that run when the loop is whole, in the order of their start."""
    from infra.stack import PARTS
    from serving import endpoint
    from serving.ingest import server as ingest

    elsewhere = {
        "mlflow": os.environ.get("MLFLOW_TRACKING_URI"),
        "triton": endpoint.elsewhere(),
        "ray": os.environ.get("RAY_ADDRESS"),
        "ingest": ingest.elsewhere(),
        "prometheus": shutil.which("prometheus") is None,
    }
    return [name for name in PARTS if not elsewhere.get(name)]


def scratch() -> Path:
    """Folder of sockets and of Ray's files: its path is short, since a socket's has 107 bytes at most."""
    name = hashlib.sha256(str(state_dir()).encode()).hexdigest()[:8]
    return Path(f"/tmp/swiftqueue-{name}")  # noqa: S108 - ours alone: see `make_scratch`


def make_scratch() -> None:
    """Make the folder, for this user alone.

    Raises:
        OSError: somebody else made it.
    """
    scratch().mkdir(mode=0o700, exist_ok=True)
    found = scratch().lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or scratch().is_symlink():
        raise OSError(f"{scratch()} is somebody else's, or open to others; remove it")


def temporary() -> Path:
    """Folder for the parts' temporary files, so that those of a killed part go with the loop."""
    folder = scratch() / "tmp"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@contextmanager
def starting() -> Iterator[None]:
    """Start parts in this block, while no other `up`, and not the keeper, does."""
    asked_file().parent.mkdir(parents=True, exist_ok=True)
    with asked_file().with_name("up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def asked_file() -> Path:
    """Where it is written down, from `up --live` to `down`."""
    return state_dir() / "live" / "up.json"


def telemetry_socket() -> Path:
    """Where the agent meets the forwarder."""
    return scratch() / "telemetry.sock"
