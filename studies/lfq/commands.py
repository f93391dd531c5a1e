"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "lfq"
HELP: Final = "LFQ, a router that learns how long each flow's queue may be."
FUNCTIONS: Final = {
    "publish": "studies.lfq.command:publish",
    "register": "studies.lfq.command:register",
    "table": "studies.lfq.command:table",
    "train": "studies.lfq.command:train",
    "verdict": "studies.lfq.command:verdict",
}
