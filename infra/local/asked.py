"""What `swiftqueue up --live` was asked for, what ought to run, and where the parts meet."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from common.atomic import write_durably
from common.json_file import read_object
from common.state import make_scratch, private_dir, scratch, state_dir
from pipelines.live import DRIFT

BED: Final = "bed"  # on the test bed the sender's connections are BED-0, BED-1, ...; there is one


@dataclass(frozen=True)
class LiveOptions:
    """What `up --live` was asked for."""

    trace: str  # a trace of data/packets, or a packet-table folder
    speed: float  # of the replay, times real time
    every_s: float
    learn_s: float
    judge_s: float
    drift: float = DRIFT
    retrain: bool = False  # when the inputs have drifted; else it is only proposed
    bed: bool = False  # a TCP connection through the test bed instead of the replayed trace

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


def asked() -> LiveOptions | None:
    """What the last `up --live` was asked for; None when there was none since the last `down`."""
    try:
        return LiveOptions(**read_object(asked_file()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{asked_file()}: not what `up --live` writes ({error}); remove it") from error


def write_asked(live: LiveOptions) -> None:
    """Write down what `up --live` was asked for, in one step: keeper and `status` read it at any time."""
    private_dir(asked_file().parent)
    write_durably(asked_file(), (json.dumps(asdict(live)) + "\n").encode())


def temporary() -> Path:
    """Folder for the parts' temporary files, so that those of a killed part go with the loop.

    It is made with each part that is started: whoever cleans the system's may have removed all of it.

    Raises:
        OSError: somebody else has our place there.
    """
    folder = make_scratch() / "tmp"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def asked_file() -> Path:
    """Where it is written down, from `up --live` to `down`."""
    return state_dir() / "live" / "up.json"


def heartbeat(name: str) -> Path:
    """File that a part touches while it lives; the keeper looks at it."""
    return scratch() / f"{name}.alive"


def telemetry_socket() -> Path:
    """Where the agent meets the forwarder."""
    return scratch() / "telemetry.sock"
