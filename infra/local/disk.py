"""The free space on the disk of the state folder, and the line for a full disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Final

from swiftqueue.common.state import state_dir

FULL_BYTES: Final = 64 << 20
FULL_SHARE: Final = 0.01  # share of a small disk


@dataclass(frozen=True)
class Disk:
    """The size and free space, in bytes, of the disk of the state folder."""

    free: int
    size: int

    @property
    def full(self) -> bool:
        """Return whether the next file may find no room."""
        return self.free < min(FULL_BYTES, FULL_SHARE * self.size)

    def __str__(self) -> str:
        return (
            f"{_bytes(self.free)} free of {_bytes(self.size)} on the disk of {state_dir()}: no part can "
            f"write; make room (du -sh {state_dir()}/*), and all goes on by itself"
        )


def disk() -> Disk:
    """Look at the disk now."""
    folder = state_dir()
    while not folder.exists():
        folder = folder.parent
    found = shutil.disk_usage(folder)
    return Disk(found.free, found.total)


def _bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
