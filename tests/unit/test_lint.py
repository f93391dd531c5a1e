"""The static checks are part of the tests, so that CI sees what `make lint` sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_sources_pass_every_static_check(project: Path) -> None:
    own = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": os.pathsep.join([own, os.environ["PATH"]])}
    result = subprocess.run(
        [project / "infra/setup/lint.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
