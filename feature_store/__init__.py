"""From traces or live telemetry to packet tables, events and windows, the models' inputs."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
