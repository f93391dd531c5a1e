"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "confucius"
HELP: Final = "Confucius, a router's rule by occupancy and age, after its paper's evaluation."
FUNCTIONS: Final = {"verdict": "swiftqueue.studies.confucius.command:verdict"}
