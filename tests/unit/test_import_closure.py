"""What a module is made of: lazy imports, C++ sources and templates found, so that no change goes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftqueue.common import import_closure
from swiftqueue.common.import_closure import code_hash, files_of


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(import_closure, "PROJECT", tmp_path)
    import_closure._reads.cache_clear()
    for name, text in {
        "room/__init__.py": '"""Words only."""\n',
        "room/a.py": "from room import b\nimport json\n\ndef f():\n    from room.deep.c import g\n",
        "room/b.py": 'SOURCES = ("b.cc", "deep/b.h")\nTEMPLATE = "page.html"\nOTHER = "no-such-file"\n',
        "room/b.cc": "",
        "room/deep/b.h": "",
        "room/page.html": "",
        "room/unused.py": "",
        "room/deep/__init__.py": "VALUE = 1\n",
        "room/deep/c.py": "import room.a\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_lazy_imports_sources_and_templates_are_found(package: Path) -> None:
    found = [f"room/{name}" for name in ("a.py", "b.cc", "b.py")]
    found += ["room/deep/__init__.py", "room/deep/b.h", "room/deep/c.py", "room/page.html"]
    assert [str(path) for path in files_of("room.a")] == found


def test_what_is_found_by_name_is_followed_and_its_folder_alone_is_not(package: Path) -> None:
    (package / "room/by_name.py").write_text('FOUND = "room.deep"\n')
    (package / "room/by_folder.py").write_text('FOLDER = "deep/"\n')
    deep = ["room/deep/__init__.py", "room/deep/c.py"]
    followed = {*deep, "room/a.py", "room/b.py", "room/by_name.py"}
    assert followed <= {str(path) for path in files_of("room.by_name")}
    assert [str(path) for path in files_of("room.by_folder")] == ["room/by_folder.py", *deep]


def test_what_only_a_type_checker_imports_is_not_needed(package: Path) -> None:
    (package / "room/typed.py").write_text("if TYPE_CHECKING:\n    import room.a\n")
    assert [str(path) for path in files_of("room.typed")] == ["room/typed.py"]


def test_any_change_of_it_is_another_hash(package: Path) -> None:
    before = code_hash("room.a")
    for name in ("room/a.py", "room/deep/b.h", "room/page.html", "room/deep/c.py"):
        path = package / name
        kept = path.read_text()
        path.write_text(kept + "\n")
        assert code_hash("room.a") != before, name
        path.write_text(kept)
    (package / "room/unused.py").write_text("changed = True\n")
    assert code_hash("room.a") == before
