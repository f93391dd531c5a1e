"""What is taken out of texts that others may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftqueue.common.program import one_line
from swiftqueue.common.redaction import redacted


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("at http://user:pa55@host:5000/x", "at http://***@host:5000/x"),
        (
            "postgresql+psycopg2://u:p%40ss@db/mlflow?sslmode=on",
            "postgresql+psycopg2://***@db/mlflow?sslmode=on",
        ),
        ("http://u:p@ss@host/", "http://***@host/"),  # not quoted, and yet a password
        ("https://token@host/", "https://***@host/"),
        ("http://h/x?a=1&access_token=abc&b=2", "http://h/x?a=1&access_token=***&b=2"),
        (
            "s3://b/k?X-Amz-Signature=abc&X-Amz-Credential=q",
            "s3://b/k?X-Amz-Signature=***&X-Amz-Credential=***",
        ),
        ("http://h/?password=a'b", "http://h/?password=***'b"),
        ("{'Authorization': 'Basic dXNlcjpwYTU1'}", "{'Authorization': 'Basic ***'}"),
        ("http://host:5000/x@y no secret, mail a@b", "http://***@y no secret, mail a@b"),
        ("sqlite:////var/mlflow.db", "sqlite:////var/mlflow.db"),
        ("version 3 of swiftqueue: key=value", "version 3 of swiftqueue: key=value"),
    ],
)
def test_credentials_of_addresses(text: str, safe: str) -> None:
    assert redacted(text) == safe


def test_those_of_the_environment_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "k/e+y1234")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://u:p%40ss%2Fword@db/x")
    said = redacted("cannot sign with k/e+y1234 or k%2Fe%2By1234; p@ss/word and p%40ss%2Fword are wrong")
    assert said == "cannot sign with *** or ***; *** and *** are wrong"


def test_an_address_that_is_none_hides_by_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://[::1:secret@x")
    assert redacted("http://[::1:secret@x") == "http://***@x"


def test_an_error_of_the_system_is_said_in_words(tmp_path: Path) -> None:
    missing = tmp_path / "nofile.pcap"
    with pytest.raises(SystemExit) as raised, one_line("swiftqueue"):
        missing.read_bytes()
    assert raised.value.code == f"swiftqueue: {missing}: No such file or directory"
