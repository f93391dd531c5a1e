"""`make docs`: gathers the pages of the checkout, adds what is generated, and builds the site with MkDocs.

It runs in the environment `.venv-docs`.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from swiftqueue.infra.site import notebook

PROJECT: Final = Path(__file__).resolve().parents[2]
SHOWN: Final = ("*.md", "*.svg", "*.png", "docs/results/*.json", "simulation/LICENSE", ":!tests")
DECISIONS: Final = Path("docs/decisions")
FOLDER_LINK: Final = re.compile(r"\]\(([^):#]*/)\)")


def gather(project: Path, pages: Path) -> None:
    """Put every page and picture of the checkout, the reference and the notebook into an empty folder.

    A link to a folder leads to the folder's README.md, as where repositories are shown; one to a notebook
    leads to its page.
    """
    shutil.rmtree(pages, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SHOWN]
    listed = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if not (project / name).is_file():
            continue  # removed, and not committed yet
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            text = FOLDER_LINK.sub(r"](\1README.md)", (project / name).read_text())
            target.write_text(text.replace(".ipynb)", ".md)"))
        else:
            shutil.copyfile(project / name, target)
    (pages / DECISIONS / "README.md").write_text(decisions(pages / DECISIONS))
    generated = [sys.executable, "-m", "swiftqueue.cli.reference", str(pages / "reference")]
    subprocess.run(generated, cwd=project, check=True)
    for source in sorted((project / "docs/tutorials").glob("*.ipynb")):
        notebook.write(source, pages / "docs/tutorials", project)


def decisions(folder: Path) -> str:
    """Return a page that lists the decisions of a folder by number and title."""
    titles = {path.name: path.read_text().partition("\n")[0].lstrip("# ") for path in folder.glob("0*.md")}
    lines = [f"- [{title}]({name})" for name, title in sorted(titles.items())]
    return "\n".join(["# Decisions", "", *lines, ""])


def navigation(entries: list[Any], pages: Iterable[str]) -> list[Any]:
    """Return the navigation with each starred entry replaced by the pages that no other entry names."""
    names = sorted(pages)
    said = list(_names(entries))
    free = [name for name in names if name not in said]

    def expanded(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            return [{title: inner if isinstance(inner, str) else _flat(expanded(one) for one in inner)}]
        if "*" not in entry:
            return [entry]
        # A star stands for the name of one file or folder.
        found = [n for n in free if fnmatch.fnmatchcase(n, entry) and n.count("/") == entry.count("/")]
        for name in found:
            free.remove(name)
        return found

    return _flat(expanded(entry) for entry in entries)


def _flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [one for inner in lists for one in inner]


def _names(entry: Any) -> Iterable[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _names(inner)


def build(project: Path, pages: Path, site: Path) -> None:
    """Gather the pages and build the site.

    Raises:
        mkdocs.exceptions.Abort: a link or an anchor leads nowhere, or a page is not in the navigation.
    """
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config

    gather(project, pages)
    settings = Path(__file__).with_name("mkdocs.yml")
    config = load_config(str(settings), docs_dir=str(pages), site_dir=str(site), strict=True)
    config.nav = navigation(config.nav, (str(path.relative_to(pages)) for path in pages.rglob("*.md")))
    config.plugins.on_startup(command="build", dirty=False)
    mkdocs_build(config)


def main() -> None:
    """Build the site, and print where it is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--output", type=Path, default=PROJECT / "build/site", help="folder of the site")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    site = parser.parse_args().output.resolve()
    try:
        build(PROJECT, site.with_name(f"{site.name}-pages"), site)
    except Exception as error:  # MkDocs has said in which page and why
        sys.exit(f"make docs: {error}")
    print(f"the site is {site}/index.html; for its search, serve it:")
    print(f"  python -m http.server --bind 127.0.0.1 --directory {site}")


if __name__ == "__main__":
    main()
