"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "lfq"
HELP: Final = "LFQ, a router that learns how long each flow's queue may be."
FUNCTIONS: Final = {
    "publish": "swiftqueue.studies.lfq.command:publish",
    "register": "swiftqueue.studies.lfq.command:register",
    "table": "swiftqueue.studies.lfq.command:table",
    "train": "swiftqueue.studies.lfq.command:train",
    "verdict": "swiftqueue.studies.lfq.command:verdict",
}
