"""The embedded Triton server: the binaries of a PyPI wheel in `.venv-triton`, run without a container.

Run as a module, it checks that environment (`make setup` does).
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The library that runs before the server's own main function: it reads the secret, and bounds messages.
FRONT: Final = Path(__file__).resolve().parents[2] / "serving/triton/front/_build/libswiftqueue_front.so"
ENVIRONMENT: Final = Path(__file__).resolve().parents[2] / ".venv-triton"
WITH_NUMPY_1: Final = ("3.11", "3.12")  # elsewhere models of the Python backend refuse to start (model.py)
# A program that tells the Python-backend stub about its interpreter.
_ASK: Final = (
    "import importlib.util as u, os, sys, sysconfig, numpy, onnxruntime;"
    "print(f'{sys.version_info[0]}.{sys.version_info[1]}', sysconfig.get_config_var('LIBDIR') or '',"
    " os.path.dirname(u.find_spec('pytriton').origin), numpy.__version__, sep='\\n')"
)


@dataclass(frozen=True)
class TritonEnvironment:
    """The paths of the server binary and its backends, and the variables to start it with."""

    server: Path
    backends: Path
    variables: dict[str, str]


def find_environment(folder: Path = ENVIRONMENT) -> TritonEnvironment:
    """Return the environment, and put the stub of its Python version where the backend expects it.

    Raises:
        OSError: a file is missing; the line says what to do.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        raise OSError(f"{folder}: no Triton environment; run `make setup`")
    # PyTriton itself is only located: importing it needs packages that its server does not.
    asked = subprocess.run([str(python), "-I", "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise OSError(f"{folder}: incomplete ({asked.stderr.strip().splitlines()[-1]}); run `make setup`")
    version, library_dir, pytriton, numpy_version = asked.stdout.splitlines()
    if not numpy_version.startswith("1.") and version in WITH_NUMPY_1:
        raise OSError(f"{folder}: NumPy {numpy_version}, but Triton's backend needs 1; run `make setup`")
    triton = Path(pytriton) / "tritonserver"
    library = f"libpython{version}.so.1.0"
    # The stub embeds Python. A pyenv or uv interpreter brings its shared library; Debian's needs a package.
    own = Path(library_dir) / library
    if not own.is_file() and ctypes.util.find_library(f"python{version}") is None:
        raise OSError(
            f"{library} is needed by Triton's Python backend and was not found; "
            f"on Debian and Ubuntu: apt-get install libpython{version}"
        )
    _place_stub(triton, version)
    paths = [str(own.parent)] if own.is_file() else []
    paths += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    preloads = filter(None, [str(FRONT), os.environ.get("LD_PRELOAD")])  # the front removes itself
    variables = {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "LD_PRELOAD": ":".join(preloads),
        "PYTHONPATH": "",  # it names packages for another Python: a NumPy found there ends the Python backend
    }
    if paths:
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    return TritonEnvironment(triton / "bin" / "tritonserver", triton / "backends", variables)


def check_front() -> None:
    """Raise OSError unless the front library can be preloaded before the server."""
    if not FRONT.is_file():
        raise OSError(f"{FRONT}: not built; run `make native`")
    if set(str(FRONT)) & set(" :"):
        raise OSError(f"{FRONT}: no program can load from a path with a space or a colon; move the project")


def _place_stub(triton: Path, version: str) -> None:
    """Copy the stub for this Python version beside the Python backend, where the backend looks for it."""
    name = "triton_python_backend_stub"
    source = triton / "python_backend_stubs" / version / name
    if not source.is_file():
        raise OSError(f"{triton}: no Python-backend stub for Python {version}; use 3.11, 3.12 or 3.13")
    target = triton / "backends" / "python" / name
    if not target.is_file() or target.stat().st_size != source.stat().st_size:
        partial = target.with_name(f".{name}.{os.getpid()}")
        shutil.copy2(source, partial)
        partial.replace(target)


if __name__ == "__main__":
    try:
        find_environment()
    except OSError as problem:
        sys.exit(f"setup: {problem}")
