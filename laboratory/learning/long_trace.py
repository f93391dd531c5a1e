"""`make long-traces`: one long, explored capture of a scenario's first sender.

It is as `explore` of the scenario says, with the first of its lengths of bursts and, unless
told otherwise, of its seeds.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from swiftqueue.common.atomic import new_folder
from swiftqueue.feature_store.packets.truth import write_truth
from swiftqueue.laboratory.runs import execution
from swiftqueue.laboratory.runs.resolve import Cell, control_of, resolve
from swiftqueue.laboratory.scenarios.files import load
from swiftqueue.pipelines.simulators import Runs, build_simulator
from swiftqueue.pipelines.stage import Given, run_stage


def main(
    scenario: Given,
    output: Given,
    seconds: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Simulate the scenario and write `s1.pcap`, what is true of its packets and what was simulated."""
    loaded = load(scenario)
    wanted = loaded.explore
    loaded = loaded.model_copy(update={"seconds": seconds or wanted.seconds})
    seed = wanted.seeds[0] if seed is None else seed
    cell = Cell(scenario.stem, "", None, loaded.profiles[0], "default", seed)
    control = control_of(loaded.environment, "default", model=None, share=0.0)
    exploring = {"share": wanted.share, "burst_packets": wanted.burst_packets[0], "seed": seed}
    run = resolve(loaded, cell, control, ["pcap", "truth", "waits"], exploring)
    program = build_simulator()
    with new_folder(output) as partial:
        asked = partial / "run.json"
        asked.write_text(json.dumps(run))
        made = partial / "run"

        def hear(line: str) -> None:
            if line.startswith("progress ") and (passed_s := float(line.split()[1])) % 60 == 0:
                print(f"{scenario.stem}: {passed_s:.0f} of {loaded.seconds:.0f} s", flush=True)

        Runs(program).run([f"--run={asked}", f"--out={made}"], f"{scenario.stem}, seed {seed}", hear)
        (made / execution.CAPTURE).replace(partial / execution.CAPTURE)
        (made / execution.TRACE_METADATA).replace(partial / execution.TRACE_METADATA)
        write_truth(made, partial / execution.TRUTH_PARQUET)
        for left in made.iterdir():
            left.unlink()
        made.rmdir()
        asked.unlink()


if __name__ == "__main__":
    run_stage("long_trace", main)
