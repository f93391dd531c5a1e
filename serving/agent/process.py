"""The C++ sender agent as a child process: checks that it is built, and reads its lines while it runs."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from common.settings import settings
from serving.triton.endpoint import pem_file

BINARY: Final = Path(__file__).parent / "_build" / "swiftqueue-agent"
STOP_S: Final = 5.0  # from asking it to end to ending it


def why_not_built() -> str | None:
    """Return a line if the agent is missing or does not start, else None."""
    if not BINARY.is_file():
        return f"{BINARY} is not built; `make -C {BINARY.parent.parent}` builds it or says what is missing"
    return _why_not_started(BINARY)


@functools.cache
def _why_not_started(binary: Path) -> str | None:
    """Return a line if the agent does not start, for example without a shared library, else None."""
    command = [str(binary), "--help"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        return f"{binary} does not start: {error}"
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return f"{binary} does not start: {said}"


def server_options(addresses: Sequence[str]) -> list[str]:
    """Return the options that make the agent ask servers, with TLS where SWIFTQUEUE_TLS_CA is set.

    Raises:
        OSError: a file is missing.

    """
    names = ("tls_ca", "tls_cert", "tls_key")
    files = [f"--{name.replace('_', '-')}={file}" for name in names if (file := pem_file(name))]
    return [f"--server={address}" for address in addresses] + files


def heartbeat_options() -> list[str]:
    """Return the options that make the agent touch the file that SWIFTQUEUE_HEARTBEAT names, if it is set."""
    return [f"--heartbeat={file}"] if (file := settings().heartbeat) else []


@contextmanager
def running_agent(arguments: Sequence[str], binary: Path = BINARY) -> Iterator[Iterator[dict[str, Any]]]:
    """Run the agent, and yield the objects that it prints, line by line, until it ends.

    Raises:
        RuntimeError: it ended with an error; the message is its own line.

    """
    with (
        tempfile.TemporaryFile("w+") as complaints,  # a full pipe would hold up the agent
        subprocess.Popen(
            [str(binary), *arguments], stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as process,
    ):
        try:
            yield _said(process, complaints)
        finally:
            end(process)


def end(process: subprocess.Popen[str], within_s: float = STOP_S) -> None:
    """Ask a program to end, and kill it if it does not in time; do nothing when it has ended."""
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()


def _said(process: subprocess.Popen[str], complaints: IO[str]) -> Iterator[dict[str, Any]]:
    for line in process.stdout or ():
        yield json.loads(line)
    if process.wait():
        complaints.seek(0)
        lines = complaints.read().splitlines()
        raise RuntimeError(lines[-1] if lines else f"{BINARY.name} was ended by signal {-process.returncode}")
