"""Where run-time state lives: `var/` of the working folder, or the folder `SWIFTQUEUE_STATE` names."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """Absolute path of the run-time state; it may not exist yet."""
    return Path(os.environ.get("SWIFTQUEUE_STATE") or "var").absolute()
