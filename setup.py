"""Builds the wheel: compiles the C++ libraries that Python loads, and names the platform in its tag."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOMS = ("common", "feature_store", "models/networks", "serving/engine")  # rooms whose libraries Python loads


class NativeBuild(build_py):
    """Copies the packages after their libraries were compiled."""

    def run(self) -> None:
        """Run make in each room, unless nothing is to be copied (an editable install)."""
        if not self.editable_mode:
            for room in ROOMS:
                folder = Path(__file__).resolve().parent / room
                make = ["make", "--silent", "--no-print-directory", f"-j{os.cpu_count()}", "-C", str(folder)]
                subprocess.run(make, check=True)
        super().run()
        if not self.editable_mode:
            name = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+dirty"]
            found = subprocess.run(name, capture_output=True, text=True, check=False).stdout.strip()
            (Path(self.build_lib) / "swiftqueue/commit.txt").write_text(f"{found or 'unknown'}\n")


class PlatformDistribution(Distribution):
    """A package that holds machine code."""

    def has_ext_modules(self) -> bool:
        """Return true: the libraries are no extension modules, but of one platform as they are."""
        return True


class AnyPythonWheel(bdist_wheel):
    """A wheel for this platform and each Python: the libraries are loaded by ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag, as `py3-none-linux_x86_64`."""
        return "py3", "none", super().get_tag()[2]


commands: dict[str, Any] = {"build_py": NativeBuild, "bdist_wheel": AnyPythonWheel}
setup(cmdclass=commands, distclass=PlatformDistribution)
