"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "drift"
HELP: Final = "When the five-minute tune pays: traces whose state changes in the middle."
FUNCTIONS: Final = {
    "publish": "swiftqueue.studies.drift.command:publish",
    "run": "swiftqueue.studies.drift.command:run",
}
