"""Stage `register`: the last fine-tuned head becomes a registry version, judged against the champion.

The decision falls here and is carried out by `swiftqueue deploy`, once the push has succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feature_store.atomic import write_file
from feature_store.events.definition import DEFINITIONS
from feature_store.events.windows import iter_windows
from feature_store.packets.schema import scan_packets
from feature_store.quality.distribution_shift import sample_inputs
from feature_store.state import private_files
from models.json_file import read_object
from models.networks import artifact
from models.networks.prediction import predict
from models.registry import gate
from models.registry.bars import Verdict
from models.registry.entering import enter, told
from models.registry.register_params import RegisterParams
from models.registry.registry import Registry
from models.registry.saving import INPUTS_FILE
from models.registry.store import numbers, texts
from models.section import read, read_all
from models.sharp import change_of
from models.training.windows import WindowSet, load_windows
from pipelines.stage import Given, StageError, run_stage

LAST_SLICES: Final = 12  # as in a live round
CHUNK: Final = 512  # windows read at once


def last_round(finetuned: Path, trace: str) -> Path:
    """Artifact of the trace's last fine-tuning round.

    Raises:
        StageError: there is none.
    """
    rounds = {int(p.name.removeprefix("round-")): p for p in (finetuned / trace).glob("round-[0-9]*")}
    if not rounds:
        known = ", ".join(sorted(p.name for p in finetuned.glob("[!.]*") if p.is_dir())) or "none"
        raise StageError(f"no fine-tuned model of trace {trace!r} under {finetuned} (traces there: {known})")
    return rounds[max(rounds)]


def judging(windows: WindowSet, trace: str) -> NDArray[np.int64]:
    """Windows (B,) that judge: the last test slices, as far as no head was fine-tuned on them.

    Raises:
        StageError: the windows were made for other features.
        ValueError: the windows do not have that trace.
    """
    if windows.schema_hash not in {one.schema_hash for one in DEFINITIONS}:
        raise StageError("the windows are of another feature definition; run `dvc repro`")
    rounds = windows.trace(trace).rounds
    tested = [np.arange(one.test.lo, one.test.hi) for one in rounds[-LAST_SLICES:]]
    taught = [np.arange(one.finetune.lo, one.finetune.hi) for one in rounds]
    return np.setdiff1d(np.concatenate(tested), np.concatenate(taught)).astype(np.int64)


def held_out_slices(
    windows: WindowSet, trace: str, judging_B: NDArray[np.int64]
) -> tuple[gate.HeldOut, float]:
    """What came of the windows that judge, and the median latency (µs) before them."""
    found = windows.trace(trace)
    before = found.y_us_BH[: judging_B[0]][np.isfinite(found.y_us_BH[: judging_B[0]])]
    held_out = gate.HeldOut(
        np.array(found.x_BWF[judging_B, -windows.horizon :]),
        found.y_us_BH[judging_B],
        found.decision_ns_B[judging_B],
        windows.feature_names,
        found.change,
    )
    return held_out, float(np.median(before)) if before.size else 0.0


def training_inputs(windows: WindowSet) -> NDArray[np.float32]:
    """Sample (N, F) of the inputs of all traces' pre-training slices: what drift is measured from.

    Shapes: B windows, W tokens of a window, H candidates, F features.
    """
    candidates_BHF = [
        trace.x_BWF[trace.pretrain.lo : trace.pretrain.hi, -windows.horizon :]
        for trace in windows.traces.values()
    ]
    return sample_inputs(np.concatenate(candidates_BHF))


def predictions(
    found: artifact.Artifact, windows: WindowSet, trace: str, packets: Path, judging_B: NDArray[np.int64]
) -> NDArray[np.float32]:
    """What any version says (B, H) of the packets that judge, µs, from the windows that it takes.

    Where these are others than the stage's (another definition or length, what is visible in them, or fewer
    inputs), they are made from the packets: versions of any two architectures are judged on the same ones.

    Raises:
        ValueError: it takes an input that is not computed any more.
    """
    described = found.description
    known = {one.schema_hash: one for one in DEFINITIONS}
    definition = known.get(described.schema_hash, artifact.network_of(found.model).definition)
    if described.schema_hash in known:
        columns: slice | list[int] = slice(None)
    else:
        computed = {(one.name, one.unit): i for i, one in enumerate(definition.features)}
        inputs = [(one.name, one.unit) for one in found.model.features]
        if gone := [name for name, unit in inputs if (name, unit) not in computed]:
            raise ValueError(f"it takes the input {gone[0]}, which is not computed any more")
        columns = [computed[one] for one in inputs]
    theirs = definition.schema_hash, described.tokens, described.visibility
    if theirs == (windows.schema_hash, windows.tokens, windows.visibility):
        x_BWF = windows.trace(trace).x_BWF
        firsts = range(0, len(judging_B), CHUNK)
        parts: Iterable[NDArray[np.float32]] = (x_BWF[judging_B[lo : lo + CHUNK]] for lo in firsts)
    else:
        table = scan_packets(packets, trace).collect()
        made = iter_windows(table, described.tokens, described.visibility, definition=definition)
        parts = _rows_of(made, judging_B)
    return np.concatenate([predict(found.model, part[..., columns]) for part in parts if len(part)])


def _rows_of(
    made: Iterable[NDArray[np.float32]], chosen_B: NDArray[np.int64]
) -> Iterator[NDArray[np.float32]]:
    """Some windows of those that are made one array after the other."""
    done = 0
    for x_BWF in made:
        here_B = chosen_B[(chosen_B >= done) & (chosen_B < done + len(x_BWF))]
        yield x_BWF[here_B - done]
        done += len(x_BWF)


def register(
    params: RegisterParams,
    *,
    windows: WindowSet,
    packets: Path,
    finetuned: Path,
    evaluation: Path,
    all_params: dict[str, Any],
    lock: Path,
) -> dict[str, Any]:
    """Register (or find again) the version, judge it, point `challenger` at it; returns registered.json."""
    trace = params.trace
    source = last_round(finetuned, trace)
    loaded = artifact.load(source, windows.schema_hash)
    judging_B = judging(windows, trace)
    held_out, otherwise_us = held_out_slices(windows, trace, judging_B)

    def score(folder: Path) -> gate.Scored:
        found = artifact.load(folder)
        return gate.score(predictions(found, windows, trace, packets, judging_B), held_out)

    naive = gate.score_naive(held_out, otherwise_us)

    def judge(
        challenger: gate.Scored, champion: gate.Scored | None, why_not: str, reference: gate.Scored | None
    ) -> Verdict:
        return gate.judge(challenger, champion, naive, why_not, reference)

    def complete(folder: Path) -> None:
        artifact.export_onnx(folder)
        np.save(folder / INPUTS_FILE, training_inputs(windows))

    def figures(scores: Mapping[str, gate.Scored]) -> dict[str, gate.Figures]:
        return {name: one.figures for name, one in {**scores, **naive}.items()}

    def metrics(scores: Mapping[str, gate.Scored]) -> dict[str, float]:
        named = figures(scores).items()
        return {k: v for name, one in named for k, v in one.as_metrics(f"gate.{name}").items()}

    description = loaded.description
    entered = enter(
        Registry(params.model_name),
        source,
        score=score,
        judge=judge,
        complete=complete,
        tags={
            "schema_hash": description.schema_hash,
            "protocol": str(description.protocol.get("name", "unknown")),
            "visibility": description.visibility,
            "source": f"{source.parent.name}/{source.name}",
        },
        params=texts(all_params),
        metrics=metrics,
        headline=lambda: headline_figures(evaluation),
        reports=evaluation,
        lock=lock,
    )
    margin = {"average_precision": gate.AP_MARGIN, "log_mae": gate.LOG_MARGIN}
    named = {name: asdict(one) for name, one in figures(entered.scores).items()}
    return entered.record(margin, named, trace=trace, round=source.name)


def headline_figures(evaluation: Path) -> dict[str, float]:
    """What `dvc metrics` shows, as metrics of the version's run; all scores stay in the file logged there."""
    path = evaluation / "metrics.json"
    if not path.is_file():
        raise StageError(f"{path} is missing; run the stage `evaluate`")
    return numbers(read_object(path))


def main(
    params: Given,
    windows: Given,
    packets: Given,
    split: Given,
    finetuned: Given,
    evaluation: Given,
    output: Given,
) -> None:
    """Read paths from the command line and values from section `register`."""
    private_files()  # what the local registry gets is its owner's alone
    section = read(params, RegisterParams)
    if why := section.why_nothing():
        nothing = {"version": None, "model": section.model_name, "trace": section.trace, "why": why}
        write_file(output, json.dumps(nothing, indent=1) + "\n")
        print(why)
        return
    result = register(
        section,
        windows=load_windows(windows, split, change=change_of(params)),
        packets=packets,
        finetuned=finetuned,
        evaluation=evaluation,
        all_params=read_all(params),
        lock=params.with_name("dvc.lock"),
    )
    write_file(output, json.dumps(result, indent=1) + "\n")
    print(told(result))


if __name__ == "__main__":
    run_stage("register", main)
