"""Runs of the stages in MLflow: named after what they are of, with the parameters, and metrics by step.

Apart from the versions' runs, in an experiment of their own. A store that does not answer stops no training:
a line says that its run is not logged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feature_store.settings import settings
from feature_store.state import experiment_name
from models.registry.lineage import git_commit
from models.registry.store import clear_errors, connect, experiment, log_params, numbers, texts

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT: Final = "swiftqueue-training"
MOST_NAMED: Final = 3  # traces


class StageRun:
    """A run that takes figures."""

    def __init__(self, name: str) -> None:
        """Nothing is logged before it is opened."""
        self.name = name
        self._client: MlflowClient | None = None
        self._id = ""

    def open(self, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Make the run in the store."""
        client = connect()
        run = client.create_run(experiment(client, EXPERIMENT), run_name=self.name, tags=dict(tags))
        self._client, self._id = client, str(run.info.run_id)
        log_params(client, self._id, texts(params))

    def log(self, figures: Mapping[str, Any], step: int = 0) -> None:
        """Log the finite numbers among some figures, nested ones as `outer.inner`."""
        from mlflow.entities import Metric

        now_ms = round(time.time() * 1e3)
        if self._client is not None:
            with self.tried():
                entities = [Metric(*pair, now_ms, step) for pair in numbers(figures).items()]
                self._client.log_batch(self._id, metrics=entities)

    def close(self, status: str) -> None:
        """Say how the work ended: FINISHED or FAILED."""
        if self._client is not None:
            with self.tried():
                self._client.set_terminated(self._id, status)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Say in a line what goes wrong with the store in the block, and ask it no more."""
        try:
            with clear_errors("logging"):
                yield
        except OSError as error:
            self._client = None
            print(f"MLflow: run {self.name!r} is not logged: {error}", file=sys.stderr, flush=True)


@contextmanager
def stage_run(
    stage: str, *, traces: Sequence[str], params: Mapping[str, Any], seed: int
) -> Iterator[StageRun]:
    """Log what is done in the block as a run: what it is of stands in its name and tags.

    Args:
        stage: which stage works.
        traces: names of the traces that it works on.
        params: all sections of params.yaml.
        seed: of the stage.

    """
    chosen = str((params.get("architecture") or {}).get("name", ""))
    sizes = params.get(chosen) or {}
    form = "x".join(str(sizes[key]) for key in ("layers", "width", "heads") if key in sizes)
    architecture = " ".join(filter(None, (chosen, form)))
    which = "+".join(traces) if len(traces) <= MOST_NAMED else f"{len(traces)} traces"
    variant = experiment_name() or settings().study or ""
    tags = {
        "stage": stage,
        "traces": ", ".join(traces)[:500],
        "architecture": architecture,
        "seed": str(seed),
        "variant": variant,
        "git_commit": git_commit(Path.cwd()),
    }
    run = StageRun(" ".join(filter(None, (stage, variant, which, architecture, f"seed {seed}"))))
    with run.tried():
        run.open(params, tags)
    try:
        yield run
    except BaseException:
        run.close("FAILED")
        raise
    run.close("FINISHED")
