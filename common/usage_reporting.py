"""The one place where the usage reporting of every dependency is switched off.

Called by the CLI, by each stage's main and by the tests before anything heavy is imported. A value
that the user has set already is left alone.
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
    """Set every opt-out of `SETTINGS` in this process and the ones it starts."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
