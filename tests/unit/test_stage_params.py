"""Every section of params.yaml: a wrong value is one line that names it, before a stage does any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from swiftqueue.common.allowed_values import allowed
from swiftqueue.common.section import read, schema_at
from swiftqueue.models.forecasters.forecaster import variants
from swiftqueue.pipelines.extract import ExtractParams
from swiftqueue.pipelines.params.sections import check, reference, section_of, sections

PROJECT = Path(__file__).resolve().parents[2]
OWN: dict[str, dict[str, Any]] = yaml.safe_load((PROJECT / "params.yaml").read_text())
ALL = variants(PROJECT / "forecasters.yaml")
COMPARED = {each.params.section: each.params.model_dump() for each in ALL}
GIVEN = COMPARED | OWN
KEYS = [(name, key) for name in sections() for key in section_of(name).model_fields]


def test_the_projects_own_parameters_pass() -> None:
    check(OWN)
    assert sorted(GIVEN) == sorted(sections())


def test_the_reference_page_is_current(project: Path) -> None:
    page = reference(project)
    assert (project / "docs/PARAMETERS.md").read_text() == page, (
        "run: python -m swiftqueue.pipelines.params.sections > docs/PARAMETERS.md"
    )
    for name, key in KEYS:
        assert (section_of(name).model_fields[key].description or "").endswith("."), f"{name}.{key}"


@pytest.mark.parametrize("value", [True, -1e9, "no such value", [], {"a": 1}, float("nan"), None], ids=repr)
def test_a_value_that_cannot_be_is_named_with_what_may_be(value: Any) -> None:
    """A value passes where its type is among those of the key: a text or null as an anchor, say."""
    types = {bool: "boolean", str: "string", type(None): "null", list: "array"}
    for name, key in KEYS:
        schema = schema_at(section_of(name), [key])
        try:
            section_of(name)(**GIVEN[name] | {key: value})
        except ValueError as error:
            line = str(error)
            assert line.startswith(f"{name}.{key}"), line
            assert "\n" not in line
            assert f"it must be {allowed(schema)}" in line or type(value) in (list, dict), line
        else:
            taken = [one.get("type") for one in schema.get("anyOf", [schema])]
            assert types.get(type(value)) in taken, (name, key, value)


@pytest.mark.parametrize("section", sorted({name for name, _ in KEYS}))
def test_unknown_and_missing_keys_are_named(section: str) -> None:
    key = next(key for key, each in section_of(section).model_fields.items() if each.is_required())
    with pytest.raises(ValueError, match=rf"unknown parameter {section}\.{key}x; did you mean {key}\?"):
        section_of(section)(**GIVEN[section] | {f"{key}x": 1})
    left = {k: v for k, v in GIVEN[section].items() if k != key}
    with pytest.raises(ValueError, match=rf"parameter {section}\.{key} is missing"):
        section_of(section)(**left)


@pytest.mark.parametrize("section", ["event-stream", "window"])
def test_heads_that_do_not_divide_the_width_are_refused_before_a_stage_works(section: str) -> None:
    line = rf"{section}\.width is \d+; it must be a multiple of {section}\.heads"
    with pytest.raises(ValueError, match=line):
        section_of(section)(**GIVEN[section] | {"heads": 7})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"keep_versions": 0}, "register.keep_versions is 0; it must be a whole number from 2"),
        ({"keep_versions": True}, "register.keep_versions is True"),
        ({"model_name": ""}, "register.model_name is ''; it must be a name"),
        ({"trace": None}, "register.trace is None"),
    ],
)
def test_register_refuses_by_name(change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        section_of("register")(**OWN["register"] | change)


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (
            {"file": "x", "sender": None, "latency": "ack"},
            "extract.traces.a.latency is 'ack'; .* acks, selective, timestamps",
        ),
        ({"file": "x", "sender": None}, "parameter extract.traces.a.latency is missing"),
        (
            {"file": "x", "sendr": 1, "latency": "acks", "sender": None},
            r"traces.a.sendr; did you mean sender\?",
        ),
        ({"file": "x", "sendr": 1, "latency": "acks"}, r"traces.a.sendr; did you mean sender\?"),
    ],
)
def test_a_trace_that_is_described_wrongly_is_named(trace: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        ExtractParams(traces={"a": trace})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "params.yaml: not valid YAML: line 1: expected the node content, but found '<stream end>'$"),
        ("a: 1\nb: c: d", "params.yaml: not valid YAML: line 2: mapping values are not allowed here$"),
        ("a: \x00", "params.yaml: not valid YAML: unacceptable character"),
        ("- 1", "must hold sections by name, not a list"),
        ("", "section `extract` is missing"),
        ("extrct: {}", r"section `extract` is missing; did you mean extrct\?"),
        ("extract: {}", r"parameter extract\.traces is missing"),
    ],
)
def test_a_parameter_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=line):
        read(path, ExtractParams)
    with pytest.raises(ValueError, match="no such parameter file"):
        read(tmp_path / "none.yaml", ExtractParams)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [[1], "x", {}])
def test_a_stage_says_it_in_one_line_and_writes_nothing(tmp_path: Path, project: Path, protocol: Any) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({**OWN, "split": {"protocol": protocol}}))
    command = [
        sys.executable,
        "-m",
        "swiftqueue.pipelines.split",
        f"--params={path}",
        f"--packets={tmp_path}",
    ]
    command += [f"--output={tmp_path / 'o'}"]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert result.stderr.strip().splitlines() == [
        f"split: {path}: split.protocol is {protocol!r}; it must be one of short, small, paper"
    ]
    assert not (tmp_path / "o").exists()
