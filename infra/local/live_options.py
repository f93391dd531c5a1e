"""The options of `swiftqueue up --live`, the record of them, and the files where the parts meet."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from swiftqueue.common.atomic import write_durably
from swiftqueue.common.json_file import read_object
from swiftqueue.common.state import make_scratch, private_dir, scratch, state_dir
from swiftqueue.pipelines.live import DRIFT

BED: Final = "bed"  # the sender's connections on the test bed are BED-0, BED-1, ...; there is one


@dataclass(frozen=True)
class LiveOptions:
    """The options of `swiftqueue up --live`."""

    trace: str  # name of a trace of data/packets, or a packet-table folder
    speed: float  # replay speed as a multiple of real time
    every_s: float
    learn_s: float
    judge_s: float
    drift: float = DRIFT
    retrain: bool = False  # whether drift starts a full re-train; otherwise the re-train is only proposed
    bed: bool = False  # whether a TCP connection through the test bed sends, instead of the replayed trace

    def __post_init__(self) -> None:
        """Raise ValueError where a number is not above zero."""
        for option, value in (
            ("--speed", self.speed),
            ("--every", self.every_s),
            ("--learn", self.learn_s),
            ("--judge", self.judge_s),
            ("--drift", self.drift),
        ):
            if not (isinstance(value, int | float) and 0 < value < sys.float_info.max):
                raise ValueError(f"{option} {value}: must be above 0")


def read() -> LiveOptions | None:
    """Return the options of the last `up --live`, or None if a `down` came after it."""
    try:
        return LiveOptions(**read_object(file()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file()}: not the options of `up --live` ({error}); remove it") from error


def write(live: LiveOptions) -> None:
    """Write the options of `up --live` atomically: the keeper and `status` read them at any time."""
    private_dir(file().parent)
    write_durably(file(), (json.dumps(asdict(live)) + "\n").encode())


def temporary() -> Path:
    """Return the folder for the parts' temporary files, so that those of a killed part go with the loop.

    The folder is made again whenever a part starts, because a cleaner of /tmp may have removed it.

    Raises:
        OSError: another user owns that path.
    """
    folder = make_scratch() / "tmp"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def file() -> Path:
    """Return the file that holds the options from `up --live` to `down`."""
    return state_dir() / "live" / "up.json"


def heartbeat(name: str) -> Path:
    """Return the file that a part touches while it lives; the keeper looks at it."""
    return scratch() / f"{name}.alive"


def telemetry_socket() -> Path:
    """Return the socket at which the agent meets the forwarder."""
    return scratch() / "telemetry.sock"
