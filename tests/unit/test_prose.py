"""The lint of prose finds what it names in bad snippets, and nothing in good ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swiftqueue.infra.setup.prose import faults

GOOD = '''"""Loads rates."""

class RateParams(Section):
    """Parameters of a rate."""

    most: int
    """Largest rate in bytes/s."""

    @property
    def fast(self) -> bool:
        """Return whether the rate is high.

        Args:
            unit: unit of the rate.
        """
        # The first line of a block counts,
        # which is a sentence here.
        return self.most > 9  # packets per second

option = typer.Option(help="rate of the link in Mbit/s")
'''
BAD = [
    ('"""Loads rates."""', '"""What loads rates."""', "no sentence"),
    ('"""Loads rates."""', '"""Loads rates"""', "no sentence"),
    ("Parameters of a rate.", "Of a rate.", "no sentence"),
    ("Return whether the rate", "Whether the rate", "no sentence"),
    ("unit of the rate.", "of the rate.", "a description begins"),
    ("# The first line", "# What the first line", "a comment begins"),
    ("# packets per", "# of packets per", "a comment begins"),
    ("Largest rate in bytes/s.", "Of the link.", "neither verb nor unit"),
    ("Largest rate in bytes/s.", "The largest.", "neither verb nor unit"),
    ("rate of the link in", "of the link in", "an option's help"),
]


def test_good_prose_has_no_fault() -> None:
    assert list(faults("good.py", GOOD)) == []


@pytest.mark.parametrize(("good", "bad", "said"), BAD)
def test_each_fault_is_found_with_its_line(good: str, bad: str, said: str) -> None:
    assert good in GOOD
    text = GOOD.replace(good, bad)
    found = [(line, fault) for line, fault in faults("bad.py", text) if said in fault]
    assert [line for line, _ in found] == [text[: text.index(bad)].count("\n") + 1]


def test_comments_of_cpp_are_checked() -> None:
    lines = [
        "// Of a link.",
        "int a;  // of the link",
        'f("http://of");',
        "// Rates of",
        "// which some are 0.",
    ]
    text = "\n".join(lines)
    assert [line for line, _ in faults("bad.h", text)] == [1, 2]


def test_a_class_name_of_two_rooms_is_a_fault(tmp_path: Path, project: Path) -> None:
    for room in ("serving", "pipelines", "studies/own"):  # a study names its classes as it likes
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "one.py").write_text('"""One."""\n\n\nclass Answer:\n    """An answer."""\n')
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    ran = subprocess.run(
        [sys.executable, project / "infra/setup/prose.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr == "serving/one.py: class Answer has another meaning in pipelines\n"
