"""A full re-train in the background: the project's stages on the recent telemetry, at the lowest priority.

    python -m infra.live.retrain FOLDER      # the stages; started by the scheduler, one at a time

FOLDER holds `params.yaml` and `packets/`. The stages `windows`, `validate` and `pretrain` run in it; then
`candidate/` appears: the artifact, and `inputs.npy`, the inputs that its encoder was trained on. A round
fine-tunes its head on the newest minute and judges it as any challenger (rounds.py).
"""

from __future__ import annotations

import argparse
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
from typing import Any, Final

import numpy as np
import polars as pl
import psutil
import yaml

from feature_store.distribution_shift import sample_inputs
from feature_store.telemetry import Latest, write_trace
from infra import processes
from infra.live import plan
from models import artifact
from models.protocol import PROTOCOLS
from models.registry import INPUTS_FILE
from models.state import state_dir
from pipelines.validate import PARAMETERS

SECONDS: Final = 600.0  # of telemetry; protocol `paper` needs 450
MOST_PACKETS: Final = 1_500_000  # their windows are 1.6 GB at 128 tokens
PAUSE_S: Final = 3600.0  # from one start to the next: what did not pass the gate will not pass at once
STOP_S: Final = 20.0
TRIES: Final = 3  # of each stage; `pretrain` goes on from its last epoch
NICENESS: Final = "19"
CANDIDATE: Final = "candidate"
LOCAL_PREFIXES: Final = ("127.", "localhost")


class RetrainError(ValueError):
    """It was not started, or ended without a model; the line says why."""


@dataclass(frozen=True)
class Retrained:
    """What a re-train made."""

    files: Mapping[str, bytes]  # artifact files by name
    tags: Mapping[str, str]  # what it learned from
    trained_on: Path  # file of a sample (N, F) of its inputs


class Retraining:
    """Starts a re-train, never a second one beside it, and hands over what it made."""

    def __init__(self, params: Mapping[str, Any], *, pause_s: float = PAUSE_S) -> None:
        """Drop what an earlier scheduler left unfinished.

        Args:
            params: all of params.yaml; the sections `windows`, `validate` and `pretrain` are used.
            pause_s: shortest time from one start to the next.
        """
        self._folder = state_dir() / "live" / "retrain"
        self._params = params
        self._pause_s = pause_s
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s: float | None = None
        if not (self._folder / CANDIDATE).is_dir():
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> Path:
        """What the stages said, of the last re-train."""
        return self._folder.with_suffix(".log")

    def running(self) -> bool:
        """Whether one runs."""
        return self._process is not None and self._process.poll() is None

    def due(self) -> bool:
        """Whether one may be started now."""
        waited = self._started_s is None or time.monotonic() - self._started_s >= self._pause_s
        return waited and self._process is None and self.candidate() is None

    def start(self, latest: Latest) -> None:
        """Start one on this telemetry.

        Raises:
            RetrainError: there is too little telemetry.
            OSError: the disk is full.
        """
        self._started_s = time.monotonic()  # a start that fails is not tried again at once either
        params = stage_params(self._params, latest.packets)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / "params.yaml").write_text(yaml.safe_dump(params))
        write_trace(latest, self._folder / "packets")
        plan.make_scratch()
        scratch().mkdir(exist_ok=True)
        environment = os.environ | {"RAY_TMPDIR": str(scratch()), "OMP_NUM_THREADS": "1"}
        if os.environ.get("RAY_ADDRESS", "").startswith(LOCAL_PREFIXES):
            # A Ray of its own: on that of the rounds its workers would have their priority and their cores.
            environment["RAY_ADDRESS"] = ""
        command = ["nice", "-n", NICENESS, sys.executable, "-m", "infra.live.retrain", str(self._folder)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, env=environment
            )

    def finish(self) -> None:
        """Look whether one has ended; harmless when none did.

        Raises:
            RetrainError: it ended without a model.
        """
        if self._process is None or (code := self._process.poll()) is None:
            return
        self._process = None
        shutil.rmtree(scratch(), ignore_errors=True)
        if code:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            # The stage's own line, and which stage it was.
            reason = "; ".join(lines[-2:]) or f"ended with code {code}"
            raise RetrainError(f"the re-train failed: {reason[:400]} (log {self.log})")

    def candidate(self) -> Retrained | None:
        """What the last one made and no round has judged yet.

        Raises:
            RetrainError: it cannot be read.
        """
        folder = self._folder / CANDIDATE
        if self.running() or not folder.is_dir():  # it appears a moment before the process has ended
            return None
        try:
            names = (artifact.WEIGHTS_FILE, artifact.DESCRIPTION_FILE)
            files = {name: (folder / name).read_bytes() for name in names}
            tags = yaml.safe_load((folder / "tags.yaml").read_text())
        except (OSError, yaml.YAMLError) as error:
            raise RetrainError(f"what the re-train left in {folder} cannot be read: {error}") from error
        return Retrained(files, tags, trained_on=folder / INPUTS_FILE)

    def drop(self) -> None:
        """Forget the candidate: it has been judged, or cannot be."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """End what runs, with its stages and their Ray."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            family = [first, *first.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
            for process in processes.wait_ended(family, STOP_S):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
        self._process = None
        shutil.rmtree(scratch(), ignore_errors=True)


def scratch() -> Path:
    """Folder of the re-train's own Ray, with a short path."""
    return plan.scratch() / "retrain"


def stage_params(params: Mapping[str, Any], packets: pl.DataFrame) -> dict[str, Any]:
    """Return the stages' parameters: the project's, with the longest protocol that this telemetry fills.

    Raises:
        RetrainError: none is short enough.
    """
    sent_ns = packets["sent_ns"]
    seconds = (int(sent_ns[-1]) - int(sent_ns[0])) / 1e9 if packets.height else 0.0
    fitting = [p for p in PROTOCOLS.values() if p.least_s < seconds]
    if not fitting:
        raise RetrainError(f"{seconds:.1f} s of telemetry are too few for a re-train")
    windows = params["windows"] | {
        "visibility": ["acked"],
        "protocol": max(fitting, key=lambda p: p.least_s).name,
    }
    # The inputs shift within it: that is why it is done.
    validate = params["validate"] | {"max_shift_psi": PARAMETERS["max_shift_psi"][1]}
    return {"windows": windows, "validate": validate, "pretrain": params["pretrain"]}


def run_stages(folder: Path) -> None:
    """Run the stages and put the candidate into the folder, in one step.

    Raises:
        RetrainError: a stage failed.
    """
    options = {
        name: ["--" + name, str(folder / name)] for name in ("packets", "windows", "validation", "pretrained")
    }

    def stage(name: str, output: str, *inputs: str) -> None:
        command = [sys.executable, "-m", f"pipelines.{name}", "--params", str(folder / "params.yaml")]
        command += [word for one in inputs for word in options[one]]
        command += ["--output", str(folder / output)]
        for _ in range(TRIES):  # a Ray of the lowest priority may not start in time on a busy machine
            code = subprocess.run(["setpriv", "--pdeathsig", "KILL", *command], check=False).returncode
            if code == 0:
                return
        raise RetrainError(f"stage {name} ended with code {code}")

    stage("windows", "windows", "packets")
    stage("validate", "validation", "packets", "windows")
    stage("pretrain", "pretrained", "windows")
    partial = folder / f".{CANDIDATE}"
    shutil.copytree(folder / "pretrained", partial)
    meta = yaml.safe_load((folder / "windows" / "meta.json").read_text())
    ((trace, slices),) = meta["traces"].items()
    low, high = slices["pretrain"]
    x_BWF = np.load(folder / "windows" / trace / "x_acked.npy", mmap_mode="r")
    decision_ns = np.load(folder / "windows" / trace / "decision_ns.npy")
    np.save(partial / INPUTS_FILE, sample_inputs(x_BWF[low:high, -meta["horizon"] :]))
    tags = {
        "retrain.protocol": meta["protocol"]["name"],
        "retrain.from_ns": str(decision_ns[low]),
        "retrain.to_ns": str(decision_ns[high - 1]),
    }
    (partial / "tags.yaml").write_text(yaml.safe_dump(tags))
    partial.rename(folder / CANDIDATE)
    for name in ("packets", "windows", "pretrained"):  # gigabytes that nobody needs any more
        shutil.rmtree(folder / name)


def main() -> None:
    """Run the stages of one re-train; another one of this state folder must not run."""
    parser = argparse.ArgumentParser(description="The stages of a re-train.")
    parser.add_argument("folder", type=Path, help="with params.yaml and packets/")
    folder = parser.parse_args().folder
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run_stages(folder)
        except BlockingIOError:
            sys.exit(f"{folder}: another re-train runs there")
        except (OSError, ValueError) as error:
            sys.exit(f"re-train: {error}")


if __name__ == "__main__":
    main()
