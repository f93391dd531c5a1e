"""Probes of a Triton pod, whose HTTP port only the pod itself reaches. Exit code 0 means well, 1 means not.

    ready.py live       Triton answers at all
    ready.py serving    Triton answers a real inference with finite latencies

The probes run inside NVIDIA's container, so they need only Python's own library.
"""

import json
import math
import os
import sys
import urllib.request
from typing import Any

URL = "http://127.0.0.1:" + os.environ.get("TRITON_HTTP_PORT", "8000") + "/v2"
MODEL = "/models/swiftqueue"
TIMEOUT_S = 2


def ask(path: str, body: object = None) -> Any:
    """Return the JSON answer of Triton's HTTP interface."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(URL + path, data, TIMEOUT_S) as response:  # noqa: S310 - loopback http
        return json.load(response)


def live() -> int:
    """Return 0 if the server answers at all, else 1."""
    try:
        with urllib.request.urlopen(URL + "/health/live", timeout=TIMEOUT_S):  # noqa: S310 - loopback http
            return 0
    except OSError as error:
        print(f"not live: {error}")
        return 1


def serving() -> int:
    """Return 0 if the served version answers a window of padding, which every version takes, else 1."""
    try:
        tokens, features = ask(MODEL)["inputs"][0]["shape"][1:]
        window = {"name": "window", "datatype": "FP32", "shape": [1, int(tokens), int(features)]}
        answer = ask(MODEL + "/infer", {"inputs": [window | {"data": [0.0] * (int(tokens) * int(features))}]})
        latency_us = answer["outputs"][0]["data"]
    except (OSError, ValueError, LookupError) as error:
        print(f"not ready: {error}")
        return 1
    if not all(math.isfinite(value) for value in latency_us):
        print(f"not ready: version {answer['model_version']} answers {latency_us}")
        return 1
    print(f"ready: version {answer['model_version']}")
    return 0


if __name__ == "__main__":
    sys.exit({"live": live, "serving": serving}[sys.argv[1]]())
