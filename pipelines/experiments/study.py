"""A study: the whole pipeline on other traces or with other parameters, in its own folder.

The folder is a DVC project without git. Its dvc.yaml and params.yaml come from the project's, and the code
that dvc.yaml names is linked: a study is redone where the code changed and resumed where it did not.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.atomic import new_file, write_file
from swiftqueue.common.given import check_folder
from swiftqueue.common.settings import variable
from swiftqueue.common.state import state_dir
from swiftqueue.models.forecasters.forecaster import AUTO
from swiftqueue.pipelines.experiments.dvc_command import call_dvc, run_dvc
from swiftqueue.pipelines.experiments.traces import TRACES, check_name, check_trace
from swiftqueue.pipelines.params.document import load_yaml, save_yaml, trace_entry
from swiftqueue.pipelines.params.override import override

PROJECT: Final = Path(__file__).resolve().parents[2]
PRETRAINED: Final = "data/models/pretrained"
SETTINGS: Final = "study.json"  # the study's options; other options make another study
USUAL: Final = {"latency": "acks", "architecture": "event-stream"}  # in a study.json that does not say
SIMULATED_ROUNDS: Final = 2  # walk-forward rounds that fit into a simulated trace


@dataclass(frozen=True)
class Study:
    """The options of a study."""

    captures: dict[str, Path]  # capture files by trace name; empty means simulated traces
    protocol: str
    overrides: list[str]
    latency: str = "acks"
    architecture: str = AUTO

    def settings(self) -> dict[str, Any]:
        """Return the options that define this study, for its `study.json`."""
        captures = {name: str(path.resolve()) for name, path in self.captures.items()}
        own = {"traces": captures, "protocol": self.protocol, "set": self.overrides}
        apart = {name: getattr(self, name) for name in USUAL}
        return own | {name: value for name, value in apart.items() if value != USUAL[name]}


def run_study(
    folder: Path,
    traces: list[Path],
    *,
    protocol: str | None,
    overrides: list[str],
    latency: str = "acks",
    architecture: str = AUTO,
    until: str = "evaluate",
) -> int:
    """Make or resume a study and run its stages up to `until`; return DVC's exit code.

    Args:
        folder: the study's folder; made if it is not there.
        traces: captures; an empty list means simulated traces, long enough for the protocol.
        protocol: name of the slice lengths (models/training/protocol.py); None takes `small`, or the longest
            that fits every capture.
        overrides: changed parameters as `SECTION.KEY=VALUE`, with VALUE in YAML.
        latency: source of the captures' latencies: `acks`, `selective` or `timestamps`.
        architecture: kind of the forecaster, or `auto`.
        until: name of the last stage to run; a study does not register.

    Raises:
        ValueError: an argument is wrong, a file is no capture, or the folder holds something else; nothing
            was changed.

    """
    from swiftqueue.feature_store.packets.captures import CaptureFile
    from swiftqueue.models.forecasters.selection import chosen_in

    if latency != "acks" and not traces:
        raise ValueError(f"--latency {latency} is of captures, and none is given")
    named = _named(traces)
    protocol = _protocol_of(folder, named, latency, protocol)
    study = Study(named, protocol, overrides, latency, architecture)
    params = study_params(load_yaml(PROJECT / "params.yaml"), study)
    stages = _stages(load_yaml(PROJECT / "dvc.yaml"), simulated=not study.captures)
    if until not in stages["stages"]:
        raise ValueError(f"a study on these traces has no stage {until!r}, but {', '.join(stages['stages'])}")
    _check_folder(folder, study)
    for path in study.captures.values():
        next(iter(CaptureFile(path)), None)  # a study that goes on has not read its captures yet
    _prepare(folder, study, params, stages)

    count = len(params["extract"]["traces"])
    print(f"study {folder}: {count} trace{'s' * (count > 1)}, protocol {protocol}, up to {until}")
    # The study's runs are compared with others, so they are logged where this folder's runs are.
    logged = {variable("state"): str(state_dir()), variable("study"): folder.name}
    code = run_dvc(["repro", until], folder, logged)
    if code != 0:
        print(
            f"study {folder} stopped at the stage named above, which said why; once that is mended (or if "
            "you stopped it) the same command goes on from there; other settings are another study, "
            "in a folder of its own"
        )
    elif until == "evaluate":
        if choice := chosen_in(folder / PRETRAINED):
            print(f"auto {choice['why']}")
        print(f"report: {folder / 'data/evaluation/report/report.html'}")
        print(f"figures: {folder / 'data/evaluation/report/scores.json'}")
    return code


def study_params(params: Any, study: Study) -> Any:
    """Return the project's parameters with the study's changes (the same document, changed in place).

    Raises:
        ValueError: the protocol is unknown, or an override names no parameter or has the wrong type.

    """
    from swiftqueue.models.training.protocol import protocol_named

    least = protocol_named(study.protocol)
    enough_s = least.pretrain_s + SIMULATED_ROUNDS * least.test_s + 2  # flows start in the first second
    params["simulate"]["duration_s"] = max(params["simulate"]["duration_s"], round(enough_s))
    params["architecture"]["name"] = study.architecture
    override(params, study.protocol, study.overrides)

    if study.captures:
        entries = {
            name: trace_entry(str(TRACES / path.name), latency=study.latency)
            for name, path in study.captures.items()
        }
    else:
        duration_s = params["simulate"]["duration_s"]
        if duration_s < least.least_s:
            raise ValueError(
                f"simulate.duration_s is {duration_s:g}, and protocol {study.protocol!r} needs at least "
                f"{least.least_s:g} s"
            )
        names = [f"dumbbell-{seed}" for seed in params["simulate"]["seeds"]]
        known = params["extract"]["traces"]
        entries = {
            name: trace_entry(
                str(TRACES / "simulated" / f"{name}.pcap"),
                latency="selective",
                protocol=known.get(name, {}).get("protocol"),
            )
            for name in names
        }
    params["extract"]["traces"] = entries
    params["register"]["trace"] = next(iter(entries))
    return params


def _named(captures: list[Path]) -> dict[str, Path]:
    """Return the name each capture after its file."""
    from swiftqueue.feature_store.packets.captures import check_capture, trace_name

    named: dict[str, Path] = {}
    for path in captures:
        check_capture(path)
        name = check_name(trace_name(path), "rename the capture")
        if name in named:
            raise ValueError(f"{path} and {named[name]} would both be trace {name!r}; rename one")
        named[name] = path
    return named


def _protocol_of(folder: Path, captures: dict[str, Path], latency: str, asked: str | None) -> str:
    """Return the protocol asked for, that of the folder's study, or the longest up to `small` that fits.

    Captures of a new study are read, so that one that does not fit is refused before a folder is made.
    """
    from swiftqueue.models.training.protocol import SMALL

    settings = folder / SETTINGS
    if settings.is_file():
        return asked or str(json.loads(settings.read_text())["protocol"])
    fitting = [
        check_trace(path, name, None, latency, asked, SMALL.name)[1].protocol
        for name, path in captures.items()
    ]
    return asked or min(fitting, key=lambda one: one.least_s, default=SMALL).name


def _stages(dvc: Any, *, simulated: bool) -> Any:
    """Return the project's stages without `register`, and without `simulate` where captures are given."""
    del dvc["stages"]["register"]
    if not simulated:
        del dvc["stages"]["simulate"]
        dvc["stages"]["evaluate"]["deps"].remove(str(TRACES / "simulated"))  # no truth of a capture is known
    return dvc


def _check_folder(folder: Path, study: Study) -> None:
    check_folder(folder, "a study")
    settings = folder / SETTINGS
    if settings.is_file():
        made_with = json.loads(settings.read_text())
        asked = study.settings()
        if differ := [what for what in {**made_with, **asked} if made_with.get(what) != asked.get(what)]:
            was = made_with.get(differ[0], USUAL.get(differ[0]))
            raise ValueError(
                f"{folder} holds a study with other settings ({differ[0]}: {was}); "
                "repeat those to go on with it, or name another folder"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no study; name another folder")


def _prepare(folder: Path, study: Study, params: Any, stages: Any) -> None:
    """Write the files of the study's DVC project; files that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    # This file comes first, so that an interrupted preparation is recognised and completed.
    write_file(folder / SETTINGS, json.dumps(study.settings(), indent=2) + "\n")
    if not (folder / ".dvc" / "config").is_file():
        call_dvc(["init", "--no-scm", "--force"], folder)
        call_dvc(["config", "core.analytics", "false"], folder)
        call_dvc(["config", "plots.html_template", str(PROJECT / ".dvc" / "plots.html")], folder)
    shutil.copyfile(PROJECT / ".dvcignore", folder / ".dvcignore")
    for room in _code_folders(stages):
        link = folder / room
        if not link.is_symlink() or link.resolve() != PROJECT / room:
            link.unlink(missing_ok=True)
            link.symlink_to(PROJECT / room, target_is_directory=True)
    (folder / TRACES).mkdir(parents=True, exist_ok=True)
    for path in study.captures.values():
        _place(path, folder / TRACES / path.name)
    save_yaml(folder / "params.yaml", params)
    save_yaml(folder / "dvc.yaml", stages)


def _code_folders(stages: Any) -> list[str]:
    dependencies = [dep for stage in stages["stages"].values() for dep in stage.get("do", stage)["deps"]]
    return sorted({Path(dep).parts[0] for dep in dependencies if not dep.startswith("$")} - {TRACES.parts[0]})


def _place(capture: Path, target: Path) -> None:
    """Put a capture into the study, as a hard link where that is possible, else as a copy."""
    if target.is_file() and filecmp.cmp(capture, target, shallow=False):
        return
    with new_file(target) as partial:
        try:
            os.link(capture.resolve(), partial)
        except OSError:  # another file system, or no right to link
            shutil.copyfile(capture, partial)
