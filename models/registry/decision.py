"""Sign the gate's decision about a version, and check signatures: an unsigned decision does not count.

The signature (HMAC-SHA256) is a tag of the version, beside the decision. It covers the model's name, the
version, the hashes of its files, the decision and the gate's reference version, so it fits no other version
and no other file. The key never goes to the registry. It is `var/secrets/gate`, or the file that
SWIFTQUEUE_GATE_KEY names if several machines decide.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
from collections.abc import Mapping
from typing import Final

from swiftqueue.common.settings import settings, variable
from swiftqueue.common.state import secret, state_dir

KEY_VARIABLE: Final = variable("gate_key")
SHORTEST_KEY: Final = 32  # bytes
CONTENT_TAG: Final = "content_sha256"  # hash of weights and description: equal hashes are one model
FILES_TAG: Final = "files_sha256"  # JSON: SHA-256 of each file by its name
REFERENCE_TAG: Final = "reference_version"  # the gate's fixed bar: the version with which the encoder came
DECISION_TAG: Final = "gate"
REASON_TAG: Final = "gate_reason"
SIGNATURE_TAG: Final = "gate_signature"
PASSED: Final = "passed"
FAILED: Final = "failed"
ANEW: Final = (
    "`dvc repro --force register` judges and signs the trained model anew, `swiftqueue deploy` serves it"
)


def signature(model: str, version: int, tags: Mapping[str, str]) -> str:
    """Return the signature of the decision that the tags hold, in hex.

    Raises:
        OSError: the key cannot be read, or others may read it; the message says what to do.
    """
    signed = [CONTENT_TAG, FILES_TAG, "schema_hash", DECISION_TAG]
    signed += [REFERENCE_TAG] if REFERENCE_TAG in tags else []  # older versions name no reference
    text = json.dumps([model, version, *(tags.get(name, "") for name in signed)])
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


def unsigned(model: str, version: int, tags: Mapping[str, str]) -> str:
    """Return, in one line, why the tags' decision is not ours; empty if it is.

    Raises:
        OSError: as `signature`.
    """
    found = tags.get(SIGNATURE_TAG)
    if found is None:
        return f"version {version} of {model} has no signed decision of the gate; {ANEW}"
    if not hmac.compare_digest(found.encode(errors="replace"), signature(model, version, tags).encode()):
        return (
            f"version {version} of {model}: its tags do not fit the gate's signature; somebody changed them, "
            f"or it was signed with another key ({KEY_VARIABLE}); {ANEW}"
        )
    return ""


def refusal(model: str, version: int, tags: Mapping[str, str]) -> str:
    """Return, in one line, why a version may not be served; empty if a signed decision passed it.

    Raises:
        OSError: as `signature`.
    """
    if why := unsigned(model, version, tags):
        return why
    if tags[DECISION_TAG] != PASSED:
        reason = "".join(c if c.isprintable() else "?" for c in tags.get(REASON_TAG, "no reason given")[:300])
        return f"version {version} did not pass the gate: {reason}"
    return ""


def key_exists() -> bool:
    """Return whether there is a key to check with; none is made."""
    return bool(settings().gate_key or settings().secrets) or (state_dir() / "secrets" / "gate").is_file()


def _key() -> bytes:
    path = settings().gate_key
    if path is None:
        return secret("gate").encode()
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o007:
            raise OSError(f"{KEY_VARIABLE}={path}: others may read this key; make a new one, of mode 0600")
        key = path.read_bytes().strip()
    except FileNotFoundError as error:
        raise OSError(f"{KEY_VARIABLE}={path}: no such file") from error
    if len(key) < SHORTEST_KEY:
        raise OSError(
            f"{KEY_VARIABLE}={path}: shorter than {SHORTEST_KEY} bytes; openssl rand -hex 32 makes one"
        )
    return key
