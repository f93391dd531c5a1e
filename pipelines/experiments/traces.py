"""The project's traces: a capture is checked, put under DVC and named in params.yaml, or nothing changes."""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swiftqueue.common.atomic import new_file, write_file
from swiftqueue.pipelines.experiments.dvc_command import call_dvc
from swiftqueue.pipelines.params.document import load_yaml, save_yaml, trace_entry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from swiftqueue.models.training.protocol import TraceSlices

TRACES: Final = Path("data/traces")
# A trace's name becomes a folder (trace=NAME) and a key of params.yaml.
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def add_trace(
    file: Path,
    *,
    name: str | None = None,
    sender: str | None = None,
    latency: str = "acks",
    protocol: str | None = None,
    project: Path | None = None,
) -> None:
    """Check a capture by extracting it, copy it to data/traces, `dvc add` it and name it in params.yaml.

    Args:
        file: path of a capture, plain or gzip.
        name: name of the trace; None takes it from the file's.
        sender: address of the sender; None takes the one that sent most TCP payload.
        latency: source of the latencies: `acks`, `selective` or `timestamps`.
        protocol: name of its slice lengths; None takes the project's, or the longest that fits.
        project: the project's folder; None takes the current one.

    Raises:
        ValueError: the file is no capture, too short or too silent, or is there already; nothing was changed.
        OSError: the capture cannot be read or copied; nothing was changed.

    """
    from swiftqueue.feature_store.packets.captures import check_capture, trace_name

    root = project or Path.cwd()
    params_path = root / "params.yaml"
    params = load_yaml(params_path)
    traces = params["extract"]["traces"]
    check_capture(file)
    stem = trace_name(file)
    trace = check_name(name or stem)
    target = root / TRACES / f"{trace}{file.name[len(stem) :]}"
    if trace in traces:
        raise ValueError(f"params.yaml has a trace {trace!r} already; choose another with --name")
    if target.exists() or target.with_name(f"{target.name}.dvc").exists():
        raise ValueError(f"{target.relative_to(root)} is there already; choose another name with --name")
    for other, entry in traces.items():
        known = root / entry["file"]
        if known.is_file() and filecmp.cmp(file, known, shallow=False):
            raise ValueError(f"{file} is trace {other!r} already, byte for byte")

    projects = params["split"]["protocol"]
    line, slices = check_trace(file, trace, sender, latency, protocol, projects)
    own = None if slices.protocol.name == projects else slices.protocol.name
    print(line)
    _version(file, target, root)
    try:
        traces[trace] = trace_entry(target.relative_to(root).as_posix(), sender, latency, own)
        save_yaml(params_path, params)
    except BaseException:
        _forget(target)
        raise
    if own:
        print(f"{slices.duration_s:.1f} s: its own protocol is {own!r} (the project's: {projects!r})")
    print(f"added as {trace!r}: {target.relative_to(root)}, named in params.yaml for the next `make run`")


def remove_trace(name: str, *, project: Path | None = None) -> None:
    """Remove a trace from params.yaml and DVC, and delete its capture and its packet table here.

    The original capture stays, and DVC's cache keeps its copy until `dvc gc`.

    Args:
        name: the trace's name in params.yaml.
        project: the project's folder; None takes the current one.

    Raises:
        ValueError: there is no such trace, it is simulated, or the loop needs it; nothing was changed.
        OSError: a file cannot be deleted.

    """
    from swiftqueue.common.section import near

    root = project or Path.cwd()
    params_path = root / "params.yaml"
    params = load_yaml(params_path)
    traces = params["extract"]["traces"]
    if name not in traces:
        raise ValueError(f"params.yaml has no trace {name!r}; {near(name, [str(one) for one in traces])}")
    if params["register"]["trace"] == name:
        raise ValueError(f"register.trace is {name!r}, whose head is served; name another trace there first")
    target = root / traces[name]["file"]
    if target.parent == root / TRACES / "simulated":
        raise ValueError(
            f"{name!r} is simulated: take its seed out of simulate.seeds and its line out of extract.traces"
        )
    others = [entry["file"] for other, entry in traces.items() if other != name]
    ours = target.parent == root / TRACES and traces[name]["file"] not in others  # `add` puts its copy there
    pointer = target.with_name(f"{target.name}.dvc")
    before = params_path.read_bytes()
    del traces[name]
    save_yaml(params_path, params)
    try:
        if ours and pointer.is_file():
            call_dvc(["remove", pointer.relative_to(root).as_posix()], root)
    except BaseException:
        write_file(params_path, before)
        raise
    if ours:
        target.unlink(missing_ok=True)
    shutil.rmtree(root / "data" / "packets" / f"trace={name}", ignore_errors=True)
    print(f"removed trace {name!r}; `make run` trains without it, and `dvc gc` frees its copy in DVC's cache")


def simulate_trace(output: Path, *, seed: int, seconds: float) -> int:
    """Simulate a trace with the parameters of section `simulate`, but another seed and length, into `output`.

    Returns:
        Exit code: 0, or that of the failed step, which has printed its reason.

    Raises:
        ValueError: a number is invalid, or a trace of params.yaml has the seed; nothing was written.
        OSError: `output` cannot be written.

    """
    from swiftqueue.feature_store.packets.extract_many import run_extract
    from swiftqueue.pipelines.simulate import SimulateParams

    params = load_yaml(Path("params.yaml"))
    if f"dumbbell-{seed}" in params["extract"]["traces"]:
        raise ValueError(f"--seed {seed}: dumbbell-{seed} is a trace of params.yaml; give another seed")
    params["simulate"] |= {"seeds": [seed], "duration_s": seconds}
    try:
        SimulateParams(**params["simulate"])
    except ValueError as error:
        raise ValueError(f"--seed {seed} --seconds {seconds:g}: {error}") from None
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".simulated-") as scratch:
        changed, captures = Path(scratch) / "params.yaml", Path(scratch) / "captures"
        save_yaml(changed, params)
        stage = [sys.executable, "-m", "swiftqueue.pipelines.simulate", "--params", str(changed)]
        stage += ["--output", str(captures)]
        if code := subprocess.run(stage, check=False).returncode:
            return code
        (capture,) = captures.glob("*.pcap")
        return run_extract([capture], output, sender=None, latency="selective", as_json=False)


def check_name(name: str, instead: str = "choose one with --name") -> str:
    """Return `name` if it can name a trace; `instead` says what else to do.

    Raises:
        ValueError: it cannot name a trace.

    """
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a trace: letters, digits, `.`, `_` and `-`, and first a letter or digit; "
            f"{instead}"
        )
    return name


def check_trace(
    file: Path, trace: str, sender: str | None, latency: str, asked: str | None, projects: str
) -> tuple[str, TraceSlices]:
    """Extract a capture into a temporary folder and divide it; return its summary line and its slices.

    Args:
        file: path of the capture.
        trace: name of the trace.
        sender: address of the sender; None takes the one that sent most TCP payload.
        latency: source of the latencies.
        asked: name of the protocol; None takes `projects`, or the longest that fits.
        projects: name of the protocol that is taken where it fits.

    Raises:
        ValueError: the capture is too short or too silent.
        OSError: it cannot be read.
    """
    from rich.console import Console

    from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace, summary_line
    from swiftqueue.feature_store.packets.schema import read_packets
    from swiftqueue.models.forecasters.traces import decision_times
    from swiftqueue.pipelines.split import check_known

    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as scratch:
        with Console(stderr=True).status(f"reading {file.name}"):
            summary = extract_trace(ExtractJob(file, trace, sender, latency), Path(scratch))
        if not summary["latency_known"]:
            raise ValueError(f"{file}: no packet's latency is known; was it captured at the sender?")
        packets = read_packets(Path(scratch), trace)
    try:
        slices = _divided(decision_times(packets), trace, asked, projects)
        check_known(packets, slices.pretrain, trace)
        return summary_line(summary), slices
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _divided(decision_ns_B: NDArray[np.int64], trace: str, asked: str | None, projects: str) -> TraceSlices:
    """Divide a trace as stage `split` will: as asked for, else as the project's, else as long as fits.

    Raises:
        ValueError: the trace cannot be divided that way.
    """
    from swiftqueue.models.training.protocol import OF_A_TRACE, PROTOCOLS, divide, protocol_named

    chosen = protocol_named(asked or projects, OF_A_TRACE)
    seconds = int(decision_ns_B[-1] - decision_ns_B[0]) / 1e9 if len(decision_ns_B) else 0.0
    fitting = [one for one in PROTOCOLS.values() if one.least_s <= seconds]
    if asked is None and chosen not in fitting:
        chosen = max(fitting, key=lambda one: one.least_s, default=chosen)
    return divide(decision_ns_B, chosen, trace)


def _version(file: Path, target: Path, root: Path) -> None:
    """Copy a capture and `dvc add` it; after an error neither the copy nor its DVC file stays."""
    ignored = target.with_name(".gitignore")
    before = ignored.read_bytes() if ignored.exists() else None
    try:
        with new_file(target) as partial:
            shutil.copyfile(file, partial)
        call_dvc(["add", target.relative_to(root).as_posix()], root)
    except BaseException:
        _forget(target)
        if before is None:
            ignored.unlink(missing_ok=True)
        else:
            ignored.write_bytes(before)
        raise


def _forget(target: Path) -> None:
    target.unlink(missing_ok=True)
    target.with_name(f"{target.name}.dvc").unlink(missing_ok=True)


def list_traces(*, project: Path | None = None) -> None:
    """Print each trace of params.yaml: its file, its size, and where it comes from if it is not here.

    Raises:
        ValueError: there is no params.yaml, or stage `extract` would refuse its traces.
    """
    from swiftqueue.common.section import read
    from swiftqueue.pipelines.extract import ExtractParams

    root = project or Path.cwd()
    projects = load_yaml(root / "params.yaml")["split"]["protocol"]
    rows = [("trace", "file", "size", "sender", "latency", "protocol")]
    for name, one in read(root / "params.yaml", ExtractParams).traces.items():
        sender, protocol = one.sender or "the heaviest", one.protocol or projects
        rows.append((name, one.file, _size(root / one.file), sender, one.latency, protocol))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # printed as plain text, so that no terminal's width cuts a path
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _size(path: Path) -> str:
    if path.is_file():
        return f"{path.stat().st_size / 1e6:,.1f} MB"
    if path.with_name(f"{path.name}.dvc").is_file():
        return "not here: dvc pull"
    if path.parent.name == "simulated":
        return "not here: dvc repro simulate"
    return "not here"
