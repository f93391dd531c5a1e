"""Packets and windows: from a trace, or live telemetry, to what the model sees."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
