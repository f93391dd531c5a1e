"""The ladder of information: each step is said with what it changes, and settled only where it is."""

from __future__ import annotations

from typing import Any

from lab_rows import runs_of, table

from swiftqueue.laboratory.report.comparison import Place
from swiftqueue.laboratory.runs.resolve import cells
from swiftqueue.laboratory.scenarios.controls import LADDER
from swiftqueue.laboratory.scenarios.files import load, path_of
from swiftqueue.studies.swiftqueue.ladder import RUNGS, STEPS, ladder, steps

HERE = Place("ladder", "", "uncoupled")
SHARES = {"default": 1, "constant_share": 0.8, "anchor": 0.7, "placebo": 0.8, "model": 0.6}
EYES = {"oracle_late": 0.65, "oracle_batched": 0.5}


def sentences(runs: list[dict[str, Any]]) -> list[str]:
    lines = steps(table(runs), HERE)
    assert max(map(len, lines)) < 120
    return " ".join(line.strip() for line in lines).replace(" - **", "\n- **").split("\n")


def rows(**more: Any) -> list[dict[str, Any]]:
    scored = {"queueing_packets": 60_000.0, "choice_right_share": 0.5}
    regrets = {name: scored | {"choice_regret_mean_us": 1e4 * x} for name, x in (SHARES | EYES).items()}
    return runs_of(SHARES | EYES, scenario="ladder", **regrets, **more)


def test_the_steps_are_said_with_what_they_change() -> None:
    said = sentences(rows())
    assert len(said) == 5
    assert said[0] == (
        "- **Balance** (`default` to `constant_share`): moving a constant share of the batches by chance "
        "changes P99 by -20.0 % (-20.0…-20.0), settled; regret from 10.00 to 8.00 ms."
    )
    assert (
        "(`anchor` to `model`): the model's training changes P99 by -14.3 % (-14.3…-14.3), settled" in said[2]
    )
    assert "a round trip ago changes P99 by -23.1 % (-23.1…-23.1), settled" in said[4]


def test_what_few_seeds_or_noise_say_is_not_settled() -> None:
    four = [row for row in rows() if row["seed"] < 5]
    assert all("which 4 seeds cannot settle" in line for line in sentences(four))
    noisy = rows()
    for row in noisy:
        if row["control"] == "model":
            row["queueing_p99_us"] *= (0.7, 1.5, 1.0, 1.4, 0.6)[row["seed"] - 1]
    said = sentences(noisy)
    assert ["not settled by 5 seeds" in line for line in said] == [False, False, True, True, False]
    without = [row for row in rows() if row["control"] != "placebo"]
    assert sentences(without)[3].endswith("and not at another time was not run.")


def test_the_tail_is_said_where_every_run_has_enough_packets_for_it() -> None:
    long = rows()
    for row in long:
        row |= {"queueing_packets": 100_000.0, "queueing_p999_us": 2 * row["queueing_p99_us"]}
        if row["control"] == "model":
            row["queueing_p999_us"] *= (0.7, 1.5, 1.0, 1.4, 0.6)[row["seed"] - 1]
    said = sentences(long)
    assert (
        "changes P99 by -20.0 % (-20.0…-20.0), settled, and P99.9 by -20.0 % (-20.0…-20.0), settled;"
        in said[0]
    )
    assert "changes P99 by -14.3 % (-14.3…-14.3), settled, and P99.9 by" in said[2]
    assert "not settled by 5 seeds; regret" in said[2]
    long[0]["queueing_packets"] = 99_999.0
    assert not any("P99.9" in line for line in sentences(long))


def test_the_table_has_every_rung_and_a_profile_that_was_not_run_is_said() -> None:
    lines = ladder(table(rows()), "uncoupled")
    assert lines[0].startswith(
        "**`uncoupled`** (5 seeds; of a run, P99 rests on 600 packets or more, P99.9 on 60,"
    )
    (model,) = [line for line in lines if "`model` |" in line]
    assert model.startswith("| the model | `model` | helps | -40.0 % (-40.0…-40.0) | 6.00 | – |")
    assert "| everything, up to the limit | `always` | – | – | – |" in "\n".join(lines)
    assert ladder(table(rows()), "rfc9332") == ["`rfc9332`: not run."]


def test_the_scenario_has_the_ladders_controls_and_seeds_of_its_own() -> None:
    scenario = load(path_of("ladder"))
    assert scenario.controls == list(RUNGS)
    assert set(RUNGS) == {"default", "model", *LADDER}
    assert {step.above for step in STEPS} | {step.below for step in STEPS} <= set(RUNGS)
    assert scenario.regret
    assert {cell.seed for cell in cells("ladder", scenario)} == set(range(101, 111))
