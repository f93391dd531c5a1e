"""`swiftqueue bed`: the kernel test bed (docs/TESTBED.md)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from laboratory.bed import checks


def check(as_json: Annotated[bool, typer.Option("--json", help="print one JSON list")] = False) -> None:
    """Say what this machine can do for the test bed, each tried for real, with its reason.

    Example: swiftqueue bed check
    """
    found = checks.check()
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        print(f"{'yes' if one.can else 'no':4}{one.name:12}{one.what_for}: {one.reason}")
