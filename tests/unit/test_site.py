"""The documents' site: each page has its place, the reference is whole, nothing comes from elsewhere."""

from __future__ import annotations

import html.parser
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import swiftqueue
from swiftqueue.cli import reference
from swiftqueue.infra.site.build import FOLDER_LINK, decisions, navigation

MADE = {"reference/commands.md", "reference/library.md", "docs/decisions/README.md"}
TOOLS = Path(sys.executable).parents[2] / ".venv-docs" / "bin" / "python"
# Attributes by which a browser loads something without being asked.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
STYLES = {"stylesheet", "preload", "preconnect", "dns-prefetch", "icon", "modulepreload", "prefetch"}


class Settings(yaml.SafeLoader):
    """MkDocs' settings without what their tags would import."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def pages(project: Path) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.ipynb", ":!tests"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return {re.sub(r"ipynb$", "md", name) for name in listed if (project / name).is_file()}


def names(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [name for inner in (entry.values() if isinstance(entry, dict) else entry) for name in names(inner)]


def test_every_page_is_in_the_navigation_once(project: Path) -> None:
    settings = yaml.load((project / "infra/site/mkdocs.yml").read_text(), Settings)  # noqa: S506 - tags do nothing
    there = pages(project) | MADE
    found = names(navigation(settings["nav"], there))
    assert sorted(found) == sorted(there), "put a new page into infra/site/mkdocs.yml"


def test_a_star_takes_what_no_entry_names() -> None:
    nav = [{"How": ["a/README.md", {"More": ["a/*.md"]}]}, "b/*/c.md"]
    told = ["a/2.md", "a/1.md", "a/README.md", "a/deep/1.md", "b/x/c.md"]
    expected = [{"How": ["a/README.md", {"More": ["a/1.md", "a/2.md"]}]}, "b/x/c.md"]
    assert navigation(nav, told) == expected


def test_a_link_to_a_folder_leads_to_its_readme() -> None:
    text = "[all](decisions/), [one](a.md), [place](a/#b), [web](https://example.org/)"
    assert FOLDER_LINK.findall(text) == ["decisions/"]


def test_every_decision_is_listed(project: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((.+)\)$", decisions(project / "docs/decisions"), re.M)
    assert listed == sorted(path.name for path in (project / "docs/decisions").glob("0*.md"))


@pytest.mark.slow
def test_the_reference_has_every_command_with_its_options_and_every_function() -> None:
    from test_structure import commands

    text = reference.commands()
    for name, command in commands().items():
        if command.hidden:
            continue
        (part,) = re.findall(rf"^#+ `swiftqueue {re.escape(name)}`$(.*?)(?=^##|\Z)", text, re.M | re.S)
        for option in command.params:
            if option.name != "help" and not option.hidden and option.param_type_name == "option":
                assert max(option.opts, key=len) in part, f"{name}: {option.opts}"
    library = reference.library()
    for name in swiftqueue.__all__:
        assert f"\n## {name}\n" in library
        assert f"### {name}" in library or f"swiftqueue.{name}(" in library or name == "Model"


def test_every_public_function_says_what_it_takes_returns_and_raises() -> None:
    import inspect

    for name in swiftqueue.__all__:
        item = getattr(swiftqueue, name)
        if inspect.isclass(item):
            continue
        text = inspect.getdoc(item) or ""
        (arguments,) = re.findall(r"^Args:\n(.*?)^\S", text, re.M | re.S)
        said = set(re.findall(r"^    (\w+): ", arguments, re.M))
        assert said == set(inspect.signature(item).parameters), name
        assert "Raises:" in text, name


class Loads(html.parser.HTMLParser):
    """Collect what a page loads by itself, and whether it has a part that loads more by script."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [str(value) for name, value in attrs if (tag, name) in LOADED]
        if tag == "link" and STYLES & set(str(values.get("rel")).split()):
            self.found.append(str(values["href"]))
        if "mermaid" in str(values.get("class")) or values.get("data-md-component") == "source":
            self.found.append(f"https://loaded.by.the.script/{values}")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not TOOLS.is_file(), reason="no tools for the site: run make setup-tests")
def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(project: Path, tmp_path: Path) -> None:
    """MkDocs refuses a link or an anchor that leads nowhere; no page asks another server for anything."""
    command = [TOOLS, "-m", "swiftqueue.infra.site.build", "--output", tmp_path / "site"]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    built = sorted((tmp_path / "site").rglob("*.html"))
    assert len(built) > 100
    for page in built:
        parser = Loads()
        parser.feed(page.read_text())
        assert parser.found, page
        foreign = [one for one in parser.found if re.match(r"(https?:)?//", one)]
        assert foreign == [], page
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", style.read_text()), style
    notebook = (tmp_path / "site/docs/tutorials/capture-to-forecast.html").read_text()
    assert "average_precision" in notebook
    assert 'src="capture-to-forecast-output' in notebook, "no picture"
    assert str(project) not in notebook


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not TOOLS.is_file(), reason="no tools for the site: run make setup-tests")
def test_a_link_that_leads_nowhere_stops_the_build(project: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from swiftqueue.infra.site import build as b\n"
        "kept = b.gather\n"
        "def gather(project, pages):\n"
        "    kept(project, pages); page = pages / 'docs/FAQ.md'\n"
        "    page.write_text(page.read_text() + '\\n[no](GLOSSARY.md#nowhere) [none](NONE.md)\\n')\n"
        "b.gather, b.notebook.write = gather, lambda s, f, p: (f / f'{s.stem}.md').write_text('# N')\n"
        "sys.argv[1:] = ['--output', sys.argv[1]]; b.main()"
    )
    ran = subprocess.run(
        [TOOLS, "-c", script, tmp_path / "site"], cwd=project, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "GLOSSARY.md#nowhere" in ran.stderr
    assert "NONE.md" in ran.stderr
