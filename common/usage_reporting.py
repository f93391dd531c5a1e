"""Switch off the usage reporting of every dependency, here and nowhere else.

The command line, each stage's `main` and the tests call it before they import anything heavy. A value that
the user has set already stays.
"""

from __future__ import annotations

import os
from typing import Final

SETTINGS: Final = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def switch_off() -> None:
    """Set every opt-out of `SETTINGS` for this process and those that it starts."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
