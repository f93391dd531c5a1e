"""Declare the study's commands, and the model that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PARAMS_FILE: Final = Path("studies/lfq/params.yaml")
NAME: Final = "lfq"
HELP: Final = "LFQ, a router that learns how long each flow's queue may be."
FUNCTIONS: Final = {
    "publish": "swiftqueue.studies.lfq.command:publish",
    "register": "swiftqueue.studies.lfq.command:register",
    "table": "swiftqueue.studies.lfq.command:table",
    "train": "swiftqueue.studies.lfq.command:train",
    "verdict": "swiftqueue.studies.lfq.command:verdict",
}
KIND: Final = "limit"
MODEL: Final = "swiftqueue-lfq"
SERVED: Final = {KIND: (MODEL, "swiftqueue.studies.lfq.deployed:MODEL")}
