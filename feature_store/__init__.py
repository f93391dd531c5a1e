"""Turn traces and live telemetry into packet tables, events and windows, which are the models' inputs."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
