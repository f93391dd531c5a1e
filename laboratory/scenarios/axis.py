"""The axis of a scenario: points given one by one, or the product of named parts."""

from __future__ import annotations

import fnmatch
import itertools
from typing import Annotated, Any

from pydantic import Field, model_validator

from swiftqueue.laboratory.scenarios.checked import ScenarioPart


class Point(ScenarioPart):
    """A point of the axis: the keys of the environment that it changes, by their path."""

    set: dict[str, Any]  # values of keys of the environment, by their path
    profiles: Annotated[list[str], Field(min_length=1)] | None = None  # None: all of the scenario's profiles
    controls: Annotated[list[str], Field(min_length=1)] | None = None  # None: all of the scenario's
    at: Annotated[float, Field(allow_inf_nan=False)] | None = None  # place on a numeric axis
    train: dict[str, Any] | None = None  # parameters of the point's own model, beside the scenario's `train`


class Axis(ScenarioPart):
    """The axis that a sweep varies.

    Points are given one by one, or as the product of named parts: each point takes one choice of each part.
    The point's name joins the names of its choices by `join`, without empty ones. It sets the keys of all its
    choices, and the first part varies fastest.
    """

    label: str  # name of the axis in plots
    parts: dict[str, dict[str, Point]] = Field(default_factory=dict)  # by part, its choices by name
    join: str = ", "  # separator of the names of a point's choices
    only: list[str] | None = None  # patterns of points to keep
    # Points by name, beside those that the parts give
    points: Annotated[dict[Annotated[str, Field(min_length=1)], Point], Field(min_length=1)]
    log: bool = False  # whether plots have a logarithmic axis

    @model_validator(mode="before")
    @classmethod
    def _multiplied(cls, raw: Any) -> Any:
        """Write the parts out as points, and drop those that `only` does not match."""
        if not isinstance(raw, dict) or not (raw.get("parts") or raw.get("only")):
            return raw
        points = {**_product(raw.get("parts") or {}, str(raw.get("join", ", "))), **(raw.get("points") or {})}
        only = raw.get("only")
        if isinstance(only, list):
            for pattern in only:
                if not any(fnmatch.fnmatchcase(name, str(pattern)) for name in points):
                    raise ValueError(f"only: no point is named {pattern!r}")
            points = {
                name: point
                for name, point in points.items()
                if any(fnmatch.fnmatchcase(name, str(pattern)) for pattern in only)
            }
        return {**raw, "points": points}

    @model_validator(mode="after")
    def _placeable(self) -> Axis:
        for name, point in self.points.items():
            if self.log and point.at is not None and point.at <= 0:
                raise ValueError(f"points.{name}.at: {point.at:g} has no place on a logarithmic axis")
        return self


def _product(parts: Any, join: str) -> dict[str, Any]:
    """Return the points of named parts as a scenario file has them, their names joined by `join`.

    Raises:
        ValueError: a part has no choices, two parts set the same key, or two points have one name.
    """
    if not isinstance(parts, dict):
        raise ValueError(f"parts: {parts!r} is no mapping of parts")
    for part, choices in parts.items():
        if not isinstance(choices, dict) or not choices:
            raise ValueError(f"parts.{part}: has no choices")
        for choice, point in choices.items():
            if not isinstance(point, dict) or not isinstance(point.get("set", {}), dict):
                raise ValueError(f"parts.{part}.{choice}: not a point of the form {{set: {{KEY: VALUE}}}}")
    points: dict[str, Any] = {}
    turned = itertools.product(*(choices.items() for choices in reversed(list(parts.values()))))
    for slowest_first in turned:
        chosen = slowest_first[::-1]
        name = join.join(str(choice) for choice, _ in chosen if choice != "")
        if name in points:
            raise ValueError(f"parts: two points are named {name!r}")
        points[name] = {"set": {}}
        for choice, point in chosen:
            for key, value in point.get("set", {}).items():
                if key in points[name]["set"]:
                    raise ValueError(f"parts: {choice!r} and another part both set {key}")
                points[name]["set"][key] = value
            for key, value in point.items():
                if key != "set" and key in points[name]:
                    raise ValueError(f"parts: {choice!r} and another part both have {key!r}")
                points[name].setdefault(key, value)
    return points
