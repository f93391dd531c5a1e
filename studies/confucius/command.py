"""`swiftqueue confucius verdict`: the figures to reach."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def verdict(
    scenario: Annotated[str, typer.Argument(help="its name, as `confucius-web`")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    output: Annotated[Path, typer.Option(help="folder of the runs")] = Path("var/lab"),
) -> None:
    """Say of each figure that a scenario is to reach: held, not held or not settled; 1 if one is not held.

    Example: swiftqueue confucius verdict confucius-web --output studies/confucius/data
    """
    from swiftqueue.laboratory.report.verdict import print_verdicts
    from swiftqueue.studies.confucius.judges import of_scenario

    sys.exit(print_verdicts(of_scenario(scenario, output), as_json=as_json))
