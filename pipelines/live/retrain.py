"""A full re-train in the background: the project's stages on recent telemetry, at the lowest priority.

    python -m swiftqueue.pipelines.live.retrain FOLDER  # runs the stages; the scheduler starts it

FOLDER holds `params.yaml` and `packets/`. The stages `split`, `validate` and `pretrain` run in it, and then
`candidate/` appears: the artifact, and `inputs.npy` with the inputs that its encoder was trained on. A round
fine-tunes its head on the newest minute and judges it like any challenger (rounds.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import polars as pl
import psutil
import typer
import yaml
from numpy.typing import NDArray

from swiftqueue.common import program
from swiftqueue.common.atomic import new_folder
from swiftqueue.common.section import read_all
from swiftqueue.common.settings import settings
from swiftqueue.common.state import make_scratch, private_dir, state_dir
from swiftqueue.common.state import scratch as loop_scratch
from swiftqueue.feature_store.quality.distribution_shift import as_rows, sample_inputs
from swiftqueue.feature_store.telemetry.recent import RecentPackets, write_trace
from swiftqueue.models.forecasters.forecaster import (
    AUTO,
    is_served,
    kind_named,
    kind_of_candidate,
    load,
    sections_of_choice,
)
from swiftqueue.models.forecasters.queries import replayed
from swiftqueue.models.forecasters.traces import about, decision_times, read_traces
from swiftqueue.models.networks import artifact
from swiftqueue.models.registry.saving import INPUTS_FILE
from swiftqueue.models.sharp import PAPERS
from swiftqueue.models.training.protocol import PROTOCOLS
from swiftqueue.pipelines.live.encoding import NOT_READ
from swiftqueue.pipelines.register import served_level

SECONDS: Final = 600.0  # seconds of telemetry; protocol `paper` needs 450
MOST_PACKETS: Final = 1_500_000  # their events and queries take some 3 GB of memory
PAUSE_S: Final = 3600.0  # from one start to the next: a model that failed the gate would fail again at once
STOP_S: Final = 20.0
TRIES: Final = 3  # tries of each stage; `pretrain` goes on from its last epoch
NICENESS: Final = "19"
CANDIDATE: Final = "candidate"
ANY_SHIFT: Final = 100.0  # highest value that section `validate` takes
LOCAL_PREFIXES: Final = ("127.", "localhost")


class RetrainError(ValueError):
    """A re-train was not started, or ended without a model; the line says why."""


@dataclass(frozen=True)
class RetrainingResult:
    """The result of a re-train."""

    files: Mapping[str, bytes]  # artifact files by name
    tags: Mapping[str, str]  # lineage of its training data
    trained_on: NDArray[np.float32]  # a sample (N, F) of its inputs


class Retraining:
    """The re-train in the background, at most one at a time, and its result."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Remove the unfinished work of an earlier scheduler.

        Args:
            params: all of params.yaml; `validate`, `architecture` and the section that it names are used.
        """
        self._folder = state_dir() / "live" / "retrain"
        self._params = params
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s: float | None = None
        self._drop_unfinished()

    @property
    def log(self) -> Path:
        """Return the log of the last re-train's stages."""
        return self._folder.with_suffix(".log")

    def running(self) -> bool:
        """Return whether a re-train runs."""
        return self._process is not None and self._process.poll() is None

    def due(self) -> bool:
        """Return whether a re-train may be started now."""
        waited = self._started_s is None or time.monotonic() - self._started_s >= PAUSE_S
        return waited and self._process is None and self.candidate() is None

    def start(self, latest: RecentPackets) -> None:
        """Start a re-train on this telemetry.

        Raises:
            RetrainError: there is too little telemetry.
            OSError: the disk is full.
        """
        self._started_s = time.monotonic()  # a start that fails is not tried again at once either
        params = stage_params(self._params, latest.packets)
        self.drop()
        private_dir(self._folder.parent)
        self._folder.mkdir()
        (self._folder / "params.yaml").write_text(yaml.safe_dump(params))
        write_trace(latest, self._folder / "packets")
        make_scratch()
        scratch().mkdir(mode=0o700, exist_ok=True)
        environment = os.environ | {"RAY_TMPDIR": str(scratch()), "OMP_NUM_THREADS": "1"}
        if (settings().ray_address or "").startswith(LOCAL_PREFIXES):
            # It has a Ray of its own: on the rounds' Ray its workers would get their priority and cores.
            environment["RAY_ADDRESS"] = ""
        command = [
            "nice",
            "-n",
            NICENESS,
            sys.executable,
            "-m",
            "swiftqueue.pipelines.live.retrain",
            str(self._folder),
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, env=environment
            )

    def finish(self) -> None:
        """Check whether a re-train has ended; do nothing if none did.

        Raises:
            RetrainError: it ended without a model.
        """
        if self._process is None or (code := self._process.poll()) is None:
            return
        self._process = None
        shutil.rmtree(scratch(), ignore_errors=True)
        if code:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            # The last lines are the stage's own error, and the stage's name.
            reason = "; ".join(lines[-2:]) or f"ended with code {code}"
            self.drop()
            raise RetrainError(f"the re-train failed: {reason[:400]} (log {self.log})")

    def candidate(self) -> RetrainingResult | None:
        """Return the result of the last re-train if no round has judged it yet.

        Raises:
            RetrainError: the result cannot be read.
        """
        folder = self._folder / CANDIDATE
        if self.running() or not folder.is_dir():  # the folder appears a moment before the process ends
            return None
        try:
            files = artifact.read_files(folder)
            tags = dict(yaml.safe_load((folder / "tags.yaml").read_text()))
            inputs_NF = np.load(folder / INPUTS_FILE, allow_pickle=False)
        except (*NOT_READ, TypeError, yaml.YAMLError) as error:  # for example after a power cut
            raise RetrainError(f"the re-train's result in {folder} cannot be read: {error}") from error
        return RetrainingResult(files, tags, inputs_NF)

    def drop(self) -> None:
        """Remove a re-train's result or leftovers, because it was judged or cannot be; its log stays."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End a running re-train, with its stages and their Ray."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            family = [first, *first.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
            for process in psutil.wait_procs(family, STOP_S)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
        self._process = None
        shutil.rmtree(scratch(), ignore_errors=True)
        self._drop_unfinished()

    def _drop_unfinished(self) -> None:
        if not (self._folder / CANDIDATE).is_dir():
            self.drop()


def scratch() -> Path:
    """Return the folder of the re-train's own Ray, with a short path."""
    return loop_scratch() / "retrain"


def stage_params(params: Mapping[str, Any], packets: pl.DataFrame) -> dict[str, Any]:
    """Return the stages' parameters: the project's, with the longest protocol that this telemetry fills.

    Raises:
        RetrainError: no protocol is short enough.
    """
    decision_ns_B = decision_times(packets)
    seconds = int(decision_ns_B[-1] - decision_ns_B[0]) / 1e9 if len(decision_ns_B) else 0.0
    fitting = [p for p in PROTOCOLS.values() if p.least_s < seconds]
    if not fitting:
        raise RetrainError(f"{seconds:.1f} s of telemetry are too few for a re-train")
    split = {"protocol": max(fitting, key=lambda p: p.least_s).name}
    # The inputs shift within the telemetry: they are the reason for the re-train.
    validate = params["validate"] | {"max_shift_psi": ANY_SHIFT}
    taken = ("change", *sections_of_choice(params))
    own = {name: params[name] for name in taken if name in params}
    if AUTO in own:  # a round can only push what is served
        among = [
            name for name in own[AUTO]["candidates"] if is_served(kind_named(kind_of_candidate(name)[0]))
        ]
        own[AUTO] = own[AUTO] | {"candidates": among}
    return {"split": split, "validate": validate, **own}


def run_stages(folder: Path) -> None:
    """Run the stages and put the candidate into the folder atomically.

    Raises:
        RetrainError: a stage failed.
    """
    options = {name: ["--" + name, str(folder / name)] for name in ("packets", "split", "validation")}

    def stage(name: str, output: str, *inputs: str) -> None:
        command = [
            sys.executable,
            "-m",
            f"swiftqueue.pipelines.{name}",
            "--params",
            str(folder / "params.yaml"),
        ]
        command += [word for one in inputs for word in options[one]]
        command += ["--output", str(folder / output)]
        for _ in range(TRIES):  # a Ray of the lowest priority may not start in time on a busy machine
            code = subprocess.run(["setpriv", "--pdeathsig", "KILL", *command], check=False).returncode
            if code == 0:
                return
        raise RetrainError(f"stage {name} ended with code {code}")

    stage("split", "split", "packets")
    stage("validate", "validation", "packets", "split")
    stage("pretrain", "pretrained", "packets", "split")
    traces = read_traces(folder / "packets", folder / "split", PAPERS)
    (trace,) = traces.values()
    learned, decision_ns_B = trace.slices.pretrain, decision_times(trace.packets)
    tags = {
        "retrain.protocol": about(traces)["name"],
        "retrain.from_ns": str(decision_ns_B[learned.lo]),
        "retrain.to_ns": str(decision_ns_B[learned.hi - 1]),
    }
    inputs_NF = sample_inputs(as_rows(replayed(trace.to_predict(learned)).x_DHF))
    with new_folder(folder / CANDIDATE) as partial:
        trained = load(folder / "pretrained")
        trained.export(partial, served_level(read_all(folder / "params.yaml"), trained))
        np.save(partial / INPUTS_FILE, inputs_NF)
        (partial / "tags.yaml").write_text(yaml.safe_dump(tags))
    for name in ("packets", "pretrained"):  # gigabytes that nobody needs any more
        shutil.rmtree(folder / name)


def main(folder: Annotated[Path, typer.Argument(help="folder with params.yaml and packets/")]) -> None:
    """Run the stages of one re-train, unless another one of this state folder runs."""
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetrainError(f"{folder}: another re-train runs there") from None
        run_stages(folder)


if __name__ == "__main__":
    program.run("re-train", main)
