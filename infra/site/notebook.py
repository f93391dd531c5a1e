"""Runs a notebook with its project's packages, and writes it as a page with its outputs and pictures."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write(source: Path, folder: Path, project: Path) -> None:
    """Run a notebook in an empty folder beside nothing of ours, and write its page and pictures.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    content = nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as empty:
        setting = {"metadata": {"path": empty}}
        NotebookClient(content, timeout=600, kernel_name="python3", resources=setting).execute()
    text, resources = MarkdownExporter().from_notebook_node(content)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in resources["outputs"].items():
        renamed = f"{source.stem}-{name}"
        (folder / renamed).write_bytes(picture)
        text = text.replace(f"({name})", f"({renamed})")
    (folder / f"{source.stem}.md").write_text(text)
