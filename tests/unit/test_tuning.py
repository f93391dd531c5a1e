"""Search spaces: what a search may propose, its section accepts; every variant that trains has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swiftqueue.benchmarks.tuning import distributions, own_values, with_values
from swiftqueue.models.forecasters.forecaster import Variant, variants
from swiftqueue.models.forecasters.search import LogRange

SECTIONS = Path(__file__).resolve().parents[2] / "forecasters.yaml"
VARIANTS = {each.name: each for each in variants(SECTIONS)}
TUNABLE = [name for name, each in VARIANTS.items() if each.kind.search]


def ends(variant: Variant) -> Iterator[tuple[str, Any]]:
    for name, each in variant.kind.search.items():
        yield from (
            (name, value) for value in ((each.low, each.high) if isinstance(each, LogRange) else each)
        )


def test_every_variant_that_trains_has_a_space_of_as_many_parameters() -> None:
    trained = [name for name, each in VARIANTS.items() if each.kind.seeded]
    assert trained == TUNABLE
    assert {len(VARIANTS[name].kind.search) for name in TUNABLE} == {4}


@pytest.mark.parametrize("name", TUNABLE)
def test_its_section_accepts_every_end_and_choice(name: str) -> None:
    variant = VARIANTS[name]
    for parameter, value in ends(variant):
        changed = with_values(variant, {parameter: value})
        assert getattr(changed.params, parameter) == value
        same = changed.params.model_dump(exclude={parameter})
        assert same == variant.params.model_dump(exclude={parameter})


@pytest.mark.parametrize("name", TUNABLE)
def test_the_values_of_its_section_lie_in_the_space(name: str) -> None:
    """They are the first trial: what is found is no worse within training."""
    variant = VARIANTS[name]
    for parameter, distribution in distributions(variant).items():
        value = own_values(variant)[parameter]
        assert distribution._contains(distribution.to_internal_repr(value)), (parameter, value)


def test_a_value_of_its_section_joins_the_choices() -> None:
    other = with_values(VARIANTS["xgboost"], {"rounds": 300})
    assert distributions(other)["rounds"].choices == (50, 100, 200, 400, 300)
    assert distributions(VARIANTS["xgboost"])["rounds"].choices == (50, 100, 200, 400)


def test_a_value_without_a_logarithm_is_named() -> None:
    with pytest.raises(ValueError, match=r"^window\.weight_decay is 0; `tune` draws its logarithm"):
        distributions(with_values(VARIANTS["window"], {"weight_decay": 0.0}))


def test_a_value_that_its_section_refuses_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"mlp.dropout is 1.5; it must be"):
        with_values(VARIANTS["mlp"], {"dropout": 1.5})
