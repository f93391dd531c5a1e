"""Runs a notebook on a simulated capture, and writes it as a page with its outputs and pictures."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from swiftqueue.common.section import read
from swiftqueue.pipelines.simulate import SimulateParams, simulate
from swiftqueue.pipelines.simulators import build_simulator

MODEL: Final = (
    "docs/laboratory/models/figure8/uncoupled"  # a published one; `make run` makes the reader's own
)
SEED: Final = 7
SECONDS: Final = 6


def capture(project: Path, folder: Path) -> Path:
    """Simulate a few seconds of the default traces' sender in a folder, and return its capture."""
    params = read(project / "params.yaml", SimulateParams).model_dump()
    params |= {"seeds": [SEED], "duration_s": SECONDS}
    (made,) = simulate(SimulateParams(**params), folder, build_simulator())
    return made


def write(source: Path, folder: Path, project: Path) -> None:
    """Run a notebook in an empty folder, and write its page and pictures.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    content = nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as empty:
        inputs = {"CAPTURE": str(capture(project, Path(empty))), "MODEL": str(project / MODEL)}
        setting = {"metadata": {"path": empty}}
        quiet = [
            "--log-level=40"
        ]  # it would say at length that its loopback connection is signed, not encrypted
        client = NotebookClient(content, timeout=600, resources=setting, extra_arguments=quiet)
        client.execute(env=os.environ | inputs)
    text, resources = MarkdownExporter().from_notebook_node(content)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in resources["outputs"].items():
        renamed = f"{source.stem}-{name}"
        (folder / renamed).write_bytes(picture)
        text = text.replace(f"({name})", f"({renamed})")
    text = text.replace(str(project) + os.sep, "")
    (folder / f"{source.stem}.md").write_text(text)
