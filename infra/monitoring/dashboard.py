"""The Grafana dashboard `grafana/dashboards/swiftqueue.json`, read as rows of panels.

Change it in Grafana and export it, or edit the file. `picture.py` draws the same panels without Grafana.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

FILE: Final = Path(__file__).parent / "grafana" / "dashboards" / "swiftqueue.json"
DATASOURCE: Final = "swiftqueue-prometheus"  # uid in grafana/provisioning/datasources


@dataclass(frozen=True)
class Query:
    """A PromQL query and the legend of its series; `{{label}}` stands for a series' label."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One graph."""

    title: str
    unit: str  # Grafana's unit names
    description: str
    queries: tuple[Query, ...]


def rows() -> dict[str, list[Panel]]:
    """Return the panels of each row by its title, in the order they are shown."""
    found: dict[str, list[Panel]] = {}
    for shown in json.loads(FILE.read_text())["panels"]:
        if shown["type"] == "row":
            found[shown["title"]] = []
        else:
            found[list(found)[-1]].append(_panel(shown))
    return found


def panels() -> list[Panel]:
    """Return all panels, in the order they are shown."""
    return [panel for row in rows().values() for panel in row]


def _panel(shown: dict[str, Any]) -> Panel:
    queries = tuple(Query(one["expr"], one["legendFormat"]) for one in shown["targets"])
    return Panel(shown["title"], shown["fieldConfig"]["defaults"]["unit"], shown["description"], queries)


def main(
    output: Annotated[
        Path, typer.Option(help="folder for the file; Grafana's SWIFTQUEUE_DASHBOARDS names it")
    ] = Path("var/dashboards"),
) -> None:
    """Copy Grafana's JSON of the dashboard.

    Example: swiftqueue monitor dashboard --output var/dashboards
    """
    output.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FILE, output / FILE.name)
    print(f"{output / FILE.name}: {len(panels())} panels")
