"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "paper"
HELP: Final = "The SwiftQueue paper exhibit by exhibit, each with a verdict."
FUNCTIONS: Final = {
    "forecasts": "studies.swiftqueue.command:forecasts",
    "publish": "studies.swiftqueue.command:publish",
    "waits": "studies.swiftqueue.command:waits",
}
