"""Read files that should hold one JSON object, but may be damaged or written by another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a file.

    Raises:
        OSError: the file is not there, or cannot be read.
        ValueError: it is truncated, not JSON, nested too deep or not an object; the line names the file.
    """
    try:
        content = json.loads(path.read_text())
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{path}: truncated or not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object")
    return content
