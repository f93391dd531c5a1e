"""`swiftqueue who-picks verdict`: the figures to reach."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def verdict(
    scenario: Annotated[str, typer.Argument(help="`who-picks` or `who-picks-cheats`")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    output: Annotated[Path, typer.Option(help="folder of the runs")] = Path("var/lab"),
) -> None:
    """Say of each figure that a scenario is to reach: held, not held or not settled; 1 if one is not held.

    Example: swiftqueue who-picks verdict who-picks --output studies/who_picks/data
    """
    from swiftqueue.laboratory.report.verdict import judge_scenario, print_verdicts
    from swiftqueue.studies.who_picks.judges import JUDGES

    sys.exit(print_verdicts(judge_scenario(scenario, JUDGES, output), as_json=as_json))
