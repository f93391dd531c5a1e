"""Types of command-line options that take a port."""

from __future__ import annotations

from typing import Annotated, Final

import typer

MOST_PORT: Final = 2**16 - 1
LoopbackPort = Annotated[int, typer.Option(min=1, max=MOST_PORT, help="on loopback")]
