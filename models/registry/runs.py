"""Log the stages' runs in MLflow: parameters, data sets, metrics by step, and outputs.

The runs are in an experiment apart from the versions' runs, and the runs of a variant are nested under one
run. A store that does not answer stops no training; a line says that the run is not logged.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.common.settings import settings
from swiftqueue.common.state import experiment_name
from swiftqueue.models.forecasters.forecaster import AUTO, sections_of_choice
from swiftqueue.models.registry.lineage import DataSet, git_commit
from swiftqueue.models.registry.store import (
    PARENT_TAG,
    TRAINING,
    clear_errors,
    connect,
    experiment,
    log_data,
    log_params,
    numbers,
    texts,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

MOST_NAMED: Final = 3  # traces named in a run's name
WORKSPACE: Final = "workspace"  # the working folder's variant, as DVC calls it
VARIANT_TAG: Final = "variant_key"  # tag of the stages' parent run: a hash of name and parameters
DATA_SECTIONS: Final = ("extract", "split", "change")  # sections of every run
STAGE_SECTIONS: Final = ("finetune", "evaluate", "register")  # in the order of the stages that read them


class StageRun:
    """A run that takes figures and files."""

    def __init__(self, name: str) -> None:
        """Make a run that logs nothing until it is opened."""
        self.name = name
        self._client: MlflowClient | None = None
        self._id = self._parent = ""

    def open(
        self, variant: str, every: Mapping[str, str], own: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        """Make the run in the store under its variant's run, which is made if it is missing.

        Args:
            variant: name of the variant.
            every: all parameters of the model; with the name they tell variants apart.
            own: parameters of this run.
            tags: tags of this run.
        """
        client = connect()
        where = experiment(client, TRAINING)
        key = hashlib.sha256(json.dumps([variant, dict(every)], sort_keys=True).encode()).hexdigest()[:16]
        if found := client.search_runs([where], f"tags.{VARIANT_TAG} = '{key}'", max_results=1):
            self._parent = str(found[0].info.run_id)
        else:
            parent_tags = {**tags, "stage": "variant", VARIANT_TAG: key}
            self._parent = str(client.create_run(where, run_name=variant, tags=parent_tags).info.run_id)
            log_params(client, self._parent, every)
        run = client.create_run(where, run_name=self.name, tags={**tags, PARENT_TAG: self._parent})
        self._client, self._id = client, str(run.info.run_id)
        log_params(client, self._id, own)

    def chose(self, forecaster: str) -> None:
        """Name in the run the forecaster that `auto` chose."""
        before, self.name = self.name, self.name.replace(f" {AUTO} ", f" {AUTO}:{forecaster} ")
        if self._client is not None and self.name != before:
            with self.tried():
                self._client.set_tag(self._id, "architecture", f"{AUTO}:{forecaster}")
                self._client.update_run(self._id, name=self.name)

    def takes(self, data: Iterable[DataSet]) -> None:
        """Log data sets as the run's training or test data."""
        if self._client is not None:
            with self.tried():
                log_data(self._client, self._id, data)

    def keep(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or a folder's content, as the run's artifacts."""
        if self._client is not None:
            log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
            with self.tried():
                log(self._id, str(path), folder)

    def log(self, figures: Mapping[str, Any], step: int = 0) -> None:
        """Log the finite numbers among some figures, nested ones as `outer.inner`."""
        from mlflow.entities import Metric

        now_ms = round(time.time() * 1e3)
        if self._client is not None:
            with self.tried():
                entities = [Metric(*pair, now_ms, step) for pair in numbers(figures).items()]
                self._client.log_batch(self._id, metrics=entities)

    def close(self, status: str) -> None:
        """Mark the run FINISHED or FAILED."""
        if self._client is not None:
            with self.tried():
                for run in (self._id, self._parent):
                    self._client.set_terminated(run, status)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Catch the store's errors in the block, print a line, and stop using the store."""
        try:
            with clear_errors("logging"):
                yield
        except OSError as error:
            self._client = None
            print(f"MLflow: run {self.name!r} is not logged: {error}", file=sys.stderr, flush=True)


def own_sections(params: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """Return the sections that a stage's model depends on, without other networks' and LFQ's."""
    last = STAGE_SECTIONS.index(stage) + 1 if stage in STAGE_SECTIONS else 0
    names = (*DATA_SECTIONS, *sections_of_choice(params), *STAGE_SECTIONS[:last])
    return {name: params[name] for name in names if name in params}


@contextmanager
def stage_run(
    stage: str, *, traces: Sequence[str], params: Mapping[str, Any], seed: int
) -> Iterator[StageRun]:
    """Log the work of the block as a run, described by its name and tags.

    Args:
        stage: name of the stage.
        traces: names of the traces that it works on.
        params: all sections of params.yaml.
        seed: seed of the stage.
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
        every, of_stage = (texts(own_sections(params, name)) for name in (STAGE_SECTIONS[-1], stage))
        run.open(variant or WORKSPACE, every, of_stage, tags)
    try:
        yield run
    except BaseException:
        run.close("FAILED")
        raise
    run.close("FINISHED")
