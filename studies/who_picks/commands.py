"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "who-picks"
HELP: Final = "Who should pick a packet's queue: the router, the sender, or nobody."
FUNCTIONS: Final = {"verdict": "swiftqueue.studies.who_picks.command:verdict"}
