"""`swiftqueue lab canary`: whether the program gives the bytes that the published one gave."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from swiftqueue.laboratory.runs import execution
from swiftqueue.laboratory.runs.programs import LISTED, Equals, build, hash_of
from swiftqueue.laboratory.runs.resolve import Model, cells, control_of, resolve
from swiftqueue.laboratory.scenarios.files import environment_at, load
from swiftqueue.pipelines.simulators import PROJECT

SCENARIO: Final = Path(__file__).with_name("canary.yaml")
MODEL: Final = PROJECT / "docs" / "laboratory" / "models" / "bed-figure8-flows" / "rfc9332"
LIMITS: Final = PROJECT / "docs" / "laboratory" / "models" / "lfq" / "counterfactual-10.safetensors"
RANDOM_SHARE: Final = 0.3
RUNGS: Final = (  # rungs of the ladder that need no other run
    "virtual_queue",
    "constant_share",
    "flow_split",
    "always",
    "last_latency_batched",
    "virtual_queue_batched",
    "oracle_late",
    "oracle_batched",
)
GUARDED_SHARE: Final = 0.75  # share of the packets in flight
CALL: Final = {"kind": "real_time", "frames_per_s": 50.0, "least_bps": 100_000, "most_bps": 10_000_000}
ALONE: Final = {"ecn": "not_ect", "traffic": {"kind": "greedy"}}
# Fields that replace those of the first sender's groups.
INSTEAD: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "calls": (
        {"tcp": "gcc", "ecn": "not_ect", "traffic": CALL},
        {"tcp": "copa", **ALONE},
    ),
    "vegas": ({"tcp": "vegas", **ALONE}, {}),
    "illinois, yeah": ({"tcp": "illinois", **ALONE}, {"tcp": "yeah", **ALONE}),
    "new reno, bic": ({"tcp": "new_reno", **ALONE}, {"tcp": "bic", **ALONE}),
    "paced": ({"paced": "on"}, {"paced": "on"}),
}
# The rules that are ours. LFQ's network gives the same bits on every CPU (simulation/model/dense.h).
ROUTERS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "FQ+FIFO": ("swiftqueue::FairQueueDisc", {}),
    "CBQ": ("swiftqueue::ClassQueueDisc", {"Label": "Ecn"}),
    "priority": ("swiftqueue::ClassQueueDisc", {"Label": "Ecn", "Service": "Strict"}),
    "HHF": ("swiftqueue::HeavyHitterQueueDisc", {}),
    "SJF": ("swiftqueue::ShortestFirstQueueDisc", {}),
    "Confucius": ("swiftqueue::ConfuciusQueueDisc", {}),
    "LFQ": ("swiftqueue::LfqQueueDisc", {"Weights": str(LIMITS)}),
    "weights by age": ("ns3::DualPi2QueueDisc", {"CWeightBy": "Age"}),
}
UNIFORM: Final = [[100, 0], [3000, 1]]
REPLAYED: Final = {"kind": "replay", "gaps_us": UNIFORM, "bytes": UNIFORM, "durations_s": [[1, 0], [2, 1]]}


def prove(listed: Path = LISTED) -> int:
    """Run all canaries with the program as it is built, and list it if it is an equal; 1 if it is not.

    A canary without a digest, a new one or that of another kernel, gets it from a listed program.

    Raises:
        ValueError: it cannot be built, the list is damaged, or a canary has no digest and the program is new.
    """
    program, _ = build()
    own, equals = hash_of(program), Equals.load(listed)
    runs = canaries()
    known = [name for name in runs if name in equals.canaries]
    if own not in equals.programs and (unknown := [name for name in runs if name not in known]):
        raise ValueError(
            f"{LISTED.name} has no canary {unknown[0]!r}: run this with a listed program first, or prove the "
            "program on a CPU whose kernel it has"
        )
    found = digests(program, runs)
    different = [name for name in known if found[name] != equals.canaries[name]]
    if different:
        print(f"program {own} gives other results than {equals.programs[0]}: {len(different)} of {len(runs)}")
        print("\n".join(f"  {name}" for name in different))
        return 1
    Equals(list(dict.fromkeys([*equals.programs, own])), equals.canaries | found).save(listed)
    print(f"program {own} gives the bytes of {equals.programs[0]} in {len(known)} runs: {listed}")
    return 0


def canaries() -> dict[str, execution.Job]:
    """Return all canary runs by name; a model's is named after the kernel that this CPU answers with."""
    from swiftqueue.serving.engine import Engine

    scenario = load(SCENARIO)
    kernel = Engine(MODEL).isa
    jobs: dict[str, execution.Job] = {}
    all_cells = list(cells("canary", scenario))
    plain = [cell for cell in all_cells if cell.control == "default" and cell.point == "one bottleneck"]
    for cell in [*all_cells, *(replace(cell, control=rung) for cell in plain for rung in RUNGS)]:
        drives = cell.control == "model"
        outputs = ["pcap", "truth", *(["questions"] if drives else [])]
        if cell.control in RUNGS:
            outputs = ["truth", "waits"]
        control = control_of(
            environment_at(scenario, cell.point, SCENARIO.name),
            cell.control,
            model=Model(MODEL, "canary") if drives else None,
            share=RANDOM_SHARE,
        )
        name = f"{cell.point}, {cell.profile}, {cell.control}" + (f" ({kernel})" if drives else "")
        run = resolve(scenario, cell, control, outputs)
        for sender in run["senders"]:
            if sender["name"] == "replayed":
                sender["groups"][0]["traffic"] = REPLAYED
        jobs[name] = execution.Job(f"canary-{len(jobs)}", run, MODEL if drives else None)
    for cell in plain:  # these are younger than the scenario
        always = control_of(scenario.environment, "always", model=None, share=0)
        control = {**always, "guard": "on", "max_moved_share": GUARDED_SHARE}
        run = resolve(scenario, replace(cell, control="always"), control, ["truth", "waits"])
        jobs[f"{cell.point}, {cell.profile}, guarded"] = execution.Job(f"canary-{len(jobs)}", run)
        for said, instead in INSTEAD.items():
            default = replace(cell, control="default")
            run = resolve(scenario, default, {"kind": "default"}, ["truth", "waits"])
            for group, other in zip(run["senders"][0]["groups"], instead, strict=True):
                group.update(other)
            jobs[f"{cell.point}, {cell.profile}, {said}"] = execution.Job(f"canary-{len(jobs)}", run)
        control = control_of(scenario.environment, "model", model=Model(MODEL, "canary"), share=0)
        run = resolve(scenario, replace(cell, control="model"), control, ["decisions", "truth"])
        name = f"{cell.point}, {cell.profile}, events ({kernel})"
        jobs[name] = execution.Job(f"canary-{len(jobs)}", run, MODEL)
    for cell in plain:
        control = control_of(scenario.environment, "random", model=None, share=RANDOM_SHARE)
        run = resolve(scenario, replace(cell, control="random"), control, ["truth"])
        run["moved_response"] = "classic"
        name = f"{cell.point}, {cell.profile}, random, classic"
        jobs[name] = execution.Job(f"canary-{len(jobs)}", run)
    for said, (kind, attributes) in ROUTERS.items():
        run = resolve(scenario, plain[0], {"kind": "default"}, ["truth"])
        run["bottlenecks"][0]["disc"] = {"type": kind, "attributes": dict(attributes)}
        jobs[f"{plain[0].point}, {said}"] = execution.Job(f"canary-{len(jobs)}", run)
    return jobs


def digests(program: Path, runs: Mapping[str, execution.Job]) -> dict[str, str]:
    """Run the canaries, as many at a time as there are cores; return the digest of each one's files.

    Raises:
        ValueError: the program refused one.
    """
    with tempfile.TemporaryDirectory(prefix="canary-") as folder:
        (Path(folder) / execution.RUNS).mkdir()

        def digest(job: execution.Job) -> str:
            if problem := execution.execute(program, Path(folder), job):
                raise ValueError(f"{job.identity}: {problem}")
            return _digest(execution.folder_of(Path(folder), job.identity))

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return dict(zip(runs, pool.map(digest, runs.values()), strict=True))


def _digest(result: Path) -> str:
    """Return a hash of a result's files, without their cost, the given run and the project's path."""
    digest = hashlib.sha256()
    for name, content in _files(result):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(result: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(result.iterdir()):
        if path.name == execution.COST:
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            described: dict[str, Any] = json.loads(content)
            del described["run"]
            described.pop("messages", None)  # the first programs of the list did not give it
            content = json.dumps(described).replace(f"{PROJECT}/", "").encode()
        yield path.name, content
