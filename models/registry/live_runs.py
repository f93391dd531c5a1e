"""Log the live rounds in MLflow: a run for each day, whose steps are its rounds, with their versions below.

The rounds have an experiment of their own, so that the stages' runs stay in sight.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.models.registry.store import LIVE_ROUNDS, clear_errors, connect, experiment, numbers

if TYPE_CHECKING:
    from mlflow import MlflowClient

DAYS: Final = 30  # days whose runs are kept; their versions go by SWIFTQUEUE_KEEP_VERSIONS
DAY_TAG: Final = "day"  # tag of a day's run: the date in UTC
MODEL_TAG: Final = "model"  # tag of a day's run: the registered model
ABOUT: Final = (
    "The live rounds of one day (UTC). The step of each metric is the round's number; "
    "the runs below are the versions that the rounds registered."
)


def day_run(client: MlflowClient, model: str) -> tuple[str, str]:
    """Return the experiment of the live rounds and today's run in it; both are made if they are missing.

    A new day's run removes those of the days before the last DAYS.
    """
    where = experiment(client, LIVE_ROUNDS)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    ours = f"tags.{MODEL_TAG} = '{model}'"
    if found := client.search_runs([where], f"{ours} and tags.{DAY_TAG} = '{day}'", max_results=1):
        return where, str(found[0].info.run_id)
    tags = {"stage": "rounds", MODEL_TAG: model, DAY_TAG: day, "mlflow.note.content": ABOUT}
    made = client.create_run(where, run_name=f"rounds of {day}, {model}", tags=tags)
    known = client.search_runs(
        [where], f"{ours} and tags.stage = 'rounds'", order_by=[f"tags.{DAY_TAG} DESC"]
    )
    for old in known[DAYS:]:
        client.delete_run(old.info.run_id)
    return where, str(made.info.run_id)


def log_round(model: str, number: int, figures: Mapping[str, Any]) -> None:
    """Log the finite numbers of a round, nested ones as `outer.inner`, with its number as their step.

    Raises:
        RegistryError: the store does not answer.
    """
    from mlflow.entities import Metric

    client = connect()
    with clear_errors("logging a round"):
        now_ms = round(time.time() * 1e3)
        entities = [Metric(*pair, now_ms, number) for pair in numbers(figures).items()]
        client.log_batch(day_run(client, model)[1], metrics=entities)
