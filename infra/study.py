"""A study: the whole pipeline on other traces or with other parameters, in a folder of its own.

The folder is a DVC project without git. Its dvc.yaml and params.yaml come from the project's; the code that
dvc.yaml names is linked, so a study is redone where the code has changed and resumed where it has not.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.dvc_command import call_dvc, run_dvc
from infra.params_file import load_yaml, parse_value, save_yaml, trace_entry
from infra.traces import TRACES, check_name

PROJECT: Final = Path(__file__).resolve().parent.parent
SETTINGS: Final = "study.json"  # what the study was asked for; a study of other settings is another study
SIMULATED_ROUNDS: Final = 2  # walk-forward rounds that a simulated trace is long enough for
# What the command's own arguments say; `--set` would contradict them.
OWN_ARGUMENTS: Final = {
    "windows.protocol": "use --protocol",
    "extract.traces": "name the captures on the command line",
    "register.trace": "a study does not register a model",
}


@dataclass(frozen=True)
class Study:
    """What a study is asked for."""

    captures: dict[str, Path]  # by trace name; empty: simulated traces
    protocol: str
    overrides: list[str]

    def settings(self) -> dict[str, Any]:
        """Return what makes it this study, for its `study.json`."""
        captures = {name: str(path.resolve()) for name, path in self.captures.items()}
        return {"traces": captures, "protocol": self.protocol, "set": self.overrides}


def run_study(
    folder: Path, traces: list[Path], *, protocol: str, overrides: list[str], until: str = "evaluate"
) -> int:
    """Make or resume a study and run its stages up to `until`; return DVC's exit code.

    Args:
        folder: the study's folder; made if it is not there.
        traces: captures; none means simulated ones, long enough for the protocol.
        protocol: name of the slice lengths, see models/protocol.py.
        overrides: `SECTION.KEY=VALUE`, VALUE in YAML.
        until: last stage to run. A study does not register.

    Raises:
        ValueError: an argument is wrong, or the folder holds something else; nothing was changed.

    """
    study = Study(_named(traces), protocol, overrides)
    params = study_params(load_yaml(PROJECT / "params.yaml"), study)
    stages = _stages(load_yaml(PROJECT / "dvc.yaml"), simulated=not study.captures)
    if until not in stages["stages"]:
        raise ValueError(
            f"a study on these traces has no stage {until!r}; it has {', '.join(stages['stages'])}"
        )
    _check_folder(folder, study)
    _prepare(folder, study, params, stages)

    print(f"study {folder}: {len(params['extract']['traces'])} traces, protocol {protocol}, up to {until}")
    code = run_dvc(["repro", until], folder)
    if code != 0:
        print(f"study {folder} stopped at the stage named above; the same command resumes it")
    elif until == "evaluate":
        print(f"report: {folder / 'data/evaluation/report/report.html'}")
        print(f"figures: {folder / 'data/evaluation/metrics.json'}")
    return code


def study_params(params: Any, study: Study) -> Any:
    """Return the project's parameters with the study's put in (the same document, changed).

    Raises:
        ValueError: the protocol is unknown, or an override names no parameter or is of another kind.

    """
    from models.protocol import protocol_named
    from pipelines.simulate import check_params
    from pipelines.stage import StageError

    least = protocol_named(study.protocol)
    params["windows"]["protocol"] = study.protocol
    enough_s = least.pretrain_s + SIMULATED_ROUNDS * least.test_s + 2  # flows start in the first second
    params["simulate"]["duration_s"] = max(params["simulate"]["duration_s"], round(enough_s))
    for override in study.overrides:
        _override(params, override)
    try:
        check_params(dict(params["simulate"]))
    except StageError as error:
        raise ValueError(str(error)) from None

    if study.captures:
        entries = {name: trace_entry(str(TRACES / path.name)) for name, path in study.captures.items()}
    else:
        duration_s = params["simulate"]["duration_s"]
        if duration_s < least.least_s:
            raise ValueError(
                f"simulate.duration_s is {duration_s:g}, and protocol {study.protocol!r} needs at least "
                f"{least.least_s:g} s"
            )
        names = [f"dumbbell-{seed}" for seed in params["simulate"]["seeds"]]
        entries = {name: trace_entry(str(TRACES / "simulated" / f"{name}.pcap")) for name in names}
    params["extract"]["traces"] = entries
    params["register"]["trace"] = next(iter(entries))
    return params


def _override(params: Any, override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot or not text.strip():
        raise ValueError(f"--set {override!r} is not of the form SECTION.KEY=VALUE")
    if section not in params:
        raise ValueError(f"--set {override}: there is no section {section!r}; there is {', '.join(params)}")
    if name not in params[section]:
        known = ", ".join(f"{section}.{k}" for k in params[section])
        raise ValueError(f"--set {override}: there is no parameter {section}.{name}; there is {known}")
    if instead := OWN_ARGUMENTS.get(f"{section}.{name}"):
        raise ValueError(f"--set {override}: {instead}")
    value, default = parse_value(text), params[section][name]
    if _kind(default) != _kind(value) and not isinstance(default, str):  # `auto` may become a number
        raise ValueError(
            f"--set {override}: {section}.{name} is {_kind(default)} (now {default}), not {_kind(value)}"
        )
    params[section][name] = value


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    for types, kind in (((int, float), "a number"), (list, "a list"), (dict, "a mapping")):
        if isinstance(value, types):
            return kind
    return "text"


def _named(captures: list[Path]) -> dict[str, Path]:
    """Name each capture after its file."""
    from feature_store.captures import trace_name

    named: dict[str, Path] = {}
    for path in captures:
        if not path.is_file():
            raise ValueError(f"{path}: no such capture")
        name = check_name(trace_name(path))
        if name in named:
            raise ValueError(f"{path} and {named[name]} would both be trace {name!r}; rename one")
        named[name] = path
    return named


def _stages(dvc: Any, *, simulated: bool) -> Any:
    """Return the project's stages without `register`, and without `simulate` where captures are given."""
    del dvc["stages"]["register"]
    if not simulated:
        del dvc["stages"]["simulate"]
    return dvc


def _check_folder(folder: Path, study: Study) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a study needs a folder")
    settings = folder / SETTINGS
    if settings.is_file():
        made_with = json.loads(settings.read_text())
        for what, value in study.settings().items():
            if made_with.get(what) != value:
                raise ValueError(
                    f"{folder} holds a study with other settings ({what}: {made_with.get(what)}); "
                    "repeat those to resume it, or name another folder"
                )
    elif folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no study; name another folder")


def _prepare(folder: Path, study: Study, params: Any, stages: Any) -> None:
    """Write what the study's DVC project consists of; harmless when it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    # First of all, so that a preparation that was cut short is recognised and completed.
    partial = folder / f".{SETTINGS}"
    partial.write_text(json.dumps(study.settings(), indent=2) + "\n")
    partial.replace(folder / SETTINGS)
    if not (folder / ".dvc" / "config").is_file():
        call_dvc(["init", "--no-scm", "--force"], folder)
        call_dvc(["config", "core.analytics", "false"], folder)
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
    dependencies = [dep for stage in stages["stages"].values() for dep in stage["deps"]]
    return sorted({Path(dep).parts[0] for dep in dependencies} - {TRACES.parts[0]})


def _place(capture: Path, target: Path) -> None:
    """Put a capture into the study: a hard link where that is possible, else a copy."""
    if target.is_file() and filecmp.cmp(capture, target, shallow=False):
        return
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(capture.resolve(), partial)
    except OSError:  # another file system, or no right to link
        shutil.copyfile(capture, partial)
    partial.replace(target)
