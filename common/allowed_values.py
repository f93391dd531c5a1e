"""Describe in words which values a field of a pydantic model takes, for messages and the reference page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_RANGE: Final = {  # a JSON schema's keywords for ranges
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "multipleOf": "a multiple of",
}
_SIGNS: Final = (  # words of `allowed`, and the signs for them on a reference page
    (r"\b(from|above) (\S+), (at most|below) (\S+)\b", r"\1 \2…\4"),
    (r"\bfrom (\S+)…", r"\1…"),
    (r"\bfrom (\S+)", r"≥\1"),
    (r"\ba whole number", "whole"),
    (r"\ba number (?!or\b)", ""),
)
_FORMATS: Final = {"path": "a path", "ipv4": "an IPv4 address"}


def allowed(schema: Mapping[str, Any]) -> str:
    """Say in words which values a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(allowed(one) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "integer" | "number" as kind:
            words = ["a whole number" if kind == "integer" else "a number"]
            for key, word in _RANGE.items():
                if key not in schema:
                    continue
                if kind == "integer" and key == "exclusiveMaximum":
                    words.append(f"{_RANGE['maximum']} {schema[key] - 1}")
                else:
                    words.append(f"{word} {schema[key]:.15g}")
            return ", ".join([" ".join(words[:2]), *words[2:]])
        case "array":
            empty = ", not empty" if schema.get("minItems") else ""
            return f"a list{empty}, each {allowed(schema['items'])}"
        case "string":
            if "examples" in schema:
                return f"of the form {schema['examples'][0]}"
            return _FORMATS.get(schema.get("format", ""), "a name" if schema.get("minLength") else "a text")
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case _:
            return "a mapping of names" + (", not empty" if schema.get("minProperties") else "")


def in_signs(schema: Mapping[str, Any]) -> str:
    """Return what `allowed` says in the short form of a reference page, with signs for ranges."""
    text = allowed(schema)
    for words, signs in _SIGNS:
        text = re.sub(words, signs, text)
    return text
