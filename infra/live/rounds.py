"""One round of the live loop: telemetry, validation, a new head, the gate, the registry, Triton.

    pushed    the new version is served
    kept      the challenger did not pass the gate; it is in the registry, the champion goes on serving
    declined  there was nothing sound to learn from: too little or bad telemetry
    failed    a part of the system was gone; the next round tries again

Whatever happens, the champion goes on serving; a failed round leaves nothing that the next one trips over.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from feature_store import expectations as ex
from feature_store.telemetry import Latest
from infra.live.minute import DeclinedError, Minute, Tuned, artifact_files, tune
from models import artifact
from models.finetuning import FinetuneParams
from models.lineage import content_hash, git_commit
from models.registry import CHALLENGER, CHAMPION, CONTENT_TAG, Registry
from models.state import state_dir
from models.warm_job import WarmJob, WarmJobError
from serving.deploy import deploy_version
from serving.endpoint import first_line

OUTCOMES: Final = ("pushed", "kept", "declined", "failed")
STEPS: Final = ("telemetry", "validate", "load", "encode", "train", "judge", "register", "push")
WORK_TIMEOUT_S: Final = 120.0
WARM_START_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True)
class RoundParams:
    """How a round is run."""

    learn_s: float  # telemetry that teaches
    judge_s: float  # telemetry after it that judges
    lead_in_s: float  # telemetry before it that only fills the first windows' history
    least_windows: int  # below this in either part the round is declined
    max_psi: float  # beyond this shift of any input a full re-train is proposed
    max_unknown_latency: float
    max_latency_s: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}; it must be a number above zero")


@dataclass
class RoundRecord:
    """What a round was; one line of the rounds log."""

    number: int
    triggered: float  # seconds since the epoch
    outcome: str = "failed"
    reason: str = ""
    version: int | None = None
    parent: int | None = None
    packets: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    loss: tuple[float, float] | None = None
    psi: dict[str, float] = field(default_factory=dict)
    retrain: bool = False  # the inputs have left what the encoder was trained on


MAX_MISSING: Final = 0.01  # share of packets that telemetry lost; windows around them show a wrong history

# The last so many seconds of a sender; FileNotFoundError where there is nothing of it.
Telemetry = Callable[[float], Latest]


class Rounds:
    """Runs rounds one after another; keeps the warm job between them."""

    def __init__(
        self, telemetry: Telemetry, params: RoundParams, finetune: FinetuneParams, model: str
    ) -> None:
        self._telemetry = telemetry
        self._params = params
        self._finetune = finetune
        self._model = model
        self._job: WarmJob | None = None
        self._folder = state_dir() / "live"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.number = len(self.history())

    @property
    def log(self) -> Path:
        """The rounds log: one JSON object a line."""
        return self._folder / "rounds.jsonl"

    def history(self) -> list[dict[str, Any]]:
        """Every round so far, oldest first; a line cut short by a full disk is left out."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.is_file() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def warm(self) -> None:
        """Start the fine-tuning workers and wait for them; harmless when they are up.

        Raises:
            WarmJobError, ConnectionError, TimeoutError: they do not come up.
        """
        if self._job is not None and not self._job.alive():
            self.close()
        if self._job is None:
            self._job = WarmJob(tune, workers=1, storage=self._folder / "ray")
        self._job.wait_ready(WARM_START_TIMEOUT_S)

    def close(self) -> None:
        """End the workers."""
        if self._job is not None:
            self._job.close()
            self._job = None

    def run(self) -> RoundRecord:
        """Run one round; never raises for what can go wrong in one."""
        self.number += 1
        record = RoundRecord(self.number, time.time())
        try:
            self._run(record)
        except DeclinedError as error:
            record.outcome, record.reason = "declined", first_line(str(error))
        except (WarmJobError, ConnectionError, TimeoutError) as error:
            record.reason = first_line(str(error))
            self.close()  # the next round starts the workers anew
        except (OSError, ValueError, RuntimeError) as error:
            record.reason = first_line(str(error))
        record.seconds["total"] = time.time() - record.triggered
        self._append(record)
        return record

    def _run(self, record: RoundRecord) -> None:
        registry = Registry(self._model)
        champion = registry.alias(CHAMPION)
        if champion is None:
            raise DeclinedError("the registry has no champion; `swiftqueue run` makes the first one")
        record.parent = champion
        with _timed(record, "telemetry"):
            latest = self._latest()
        packets = latest.packets
        record.packets = packets.height
        with _timed(record, "validate"):
            self._validate(latest)
        with tempfile.TemporaryDirectory() as temporary:
            parent = registry.fetch(champion, Path(temporary) / "champion")
            tuned = self._tune(latest, parent)
            record.seconds |= tuned.seconds
            record.figures, record.loss = tuned.figures, (tuned.loss_before, tuned.loss_after)
            record.psi = dict(sorted(tuned.psi.items(), key=lambda item: -item[1]))
            record.retrain = max(tuned.psi.values()) > self._params.max_psi
            with _timed(record, "register"):
                folder = Path(temporary) / "challenger"
                record.version = self._register(registry, champion, tuned, folder, packets)
        record.outcome, record.reason = "kept", tuned.verdict.reason
        if tuned.verdict.passed:
            with _timed(record, "push"):
                deploy_version(record.version)
            record.outcome = "pushed"

    def _latest(self) -> Latest:
        seconds = self._params.lead_in_s + self._params.learn_s + self._params.judge_s
        try:
            return self._telemetry(seconds)
        except FileNotFoundError as error:
            raise DeclinedError(str(error)) from error

    def _validate(self, latest: Latest) -> None:
        packets = latest.packets
        if packets.is_empty():
            raise DeclinedError("no telemetry")
        if latest.missing_packets > MAX_MISSING * packets.height:
            raise DeclinedError(
                f"telemetry has gaps: {latest.missing_packets} packets are missing among {packets.height}"
            )
        validation = ex.Validation()
        name = str(packets["trace"][0])
        limits = self._params.max_unknown_latency, self._params.max_latency_s
        validation.run(ex.packets_check(name, packets, *limits))
        if validation.failures:
            raise DeclinedError(f"bad telemetry: {validation.failures[0]}")

    def _tune(self, latest: Latest, parent: Path) -> Tuned:
        packets = latest.packets
        self.warm()
        assert self._job is not None  # noqa: S101 - `warm` made it
        newest_ns = int(packets["sent_ns"][-1])
        judge_from_ns = newest_ns - round(self._params.judge_s * 1e9)
        reference = self._folder / f"inputs-{_encoder_hash(parent)[:16]}.npy"
        minute = Minute(
            packets=packets,
            flow_starts_ns=latest.flow_starts_ns,
            learn_from_ns=judge_from_ns - round(self._params.learn_s * 1e9),
            judge_from_ns=judge_from_ns,
            champion=artifact_files(parent),
            params=self._finetune,
            reference=np.load(reference, allow_pickle=False) if reference.is_file() else None,
            least_windows=self._params.least_windows,
        )
        tuned: Tuned = self._job.do(minute, WORK_TIMEOUT_S)
        if not reference.is_file():
            partial = reference.with_name(f".{reference.name}")
            np.save(partial, tuned.sample)
            partial.replace(reference)
        return tuned

    def _register(
        self, registry: Registry, parent: int, tuned: Tuned, folder: Path, packets: pl.DataFrame
    ) -> int:
        folder.mkdir()
        for name, written in tuned.files.items():
            (folder / name).write_bytes(written)
        content = content_hash(folder)
        if (known := registry.find(content)) is not None:
            return known
        artifact.export_onnx(folder)
        description = artifact.load(folder).description
        inherited = {k: v for k, v in registry.tags(parent).items() if k.startswith("dvc.")}
        tags = inherited | {
            CONTENT_TAG: content,
            "git_commit": git_commit(Path.cwd()),
            "schema_hash": description.schema_hash,
            "parent_version": str(parent),
            "protocol": "live",
            "visibility": description.visibility,
            "source": f"telemetry/{packets['trace'][0]}",
            "telemetry_from_ns": str(packets["sent_ns"][0]),
            "telemetry_to_ns": str(packets["sent_ns"][-1]),
            "gate": "passed" if tuned.verdict.passed else "failed",
            "gate_reason": tuned.verdict.reason,
            "gate_champion": str(parent),
        }
        metrics = {
            f"gate.{who}.{name}": float(value)
            for who, figures in tuned.figures.items()
            for name, value in figures.items()
            if value is not None
        }
        version = registry.add(folder, tags=tags, params=_params(self._finetune), metrics=metrics)
        registry.set_alias(CHALLENGER, version)
        return version

    def _append(self, record: RoundRecord) -> None:
        line = (json.dumps(asdict(record)) + "\n").encode()
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def _encoder_hash(folder: Path) -> str:
    """Hash of all weights but the head's: fine-tuning leaves them as they are."""
    digest = hashlib.sha256()
    for name, value in sorted(artifact.load(folder).model.encoder_state().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def _params(finetune: FinetuneParams) -> dict[str, str]:
    return {f"finetune.{name}": str(value) for name, value in asdict(finetune).items()}


@contextmanager
def _timed(record: RoundRecord, step: str) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        record.seconds[step] = time.monotonic() - begin
