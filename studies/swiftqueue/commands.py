"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "paper"
HELP: Final = "The SwiftQueue paper exhibit by exhibit, each with a verdict."
FUNCTIONS: Final = {
    "forecasts": "swiftqueue.studies.swiftqueue.command:forecasts",
    "publish": "swiftqueue.studies.swiftqueue.command:publish",
    "waits": "swiftqueue.studies.swiftqueue.command:waits",
}
