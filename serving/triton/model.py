"""Triton Python-backend model: ONNX Runtime on one core, every request judged alone.

Triton copies nothing from the project: this file lies in each version folder beside `model.onnx`,
`model.json` and `limits.json`, and runs in the interpreter of `.venv-triton` (NumPy 1: with NumPy 2 the
backend silently returns empty outputs).

Shapes: B windows, W rows, F features of a row, H horizon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # type: ignore[import-not-found]  # part of the backend


class TritonPythonModel:
    """The interface of the backend: `initialize` once a version, `execute` for each batch of requests."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the version's network; an exception here makes Triton refuse the version."""
        if int(np.__version__.split(".")[0]) > 1:
            raise RuntimeError(
                f"NumPy {np.__version__} in Triton's environment; the Python backend needs NumPy 1: "
                "set the project up with Python 3.11 or 3.12"
            )
        folder = Path(args["model_repository"]) / args["model_version"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one window is too small to share
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        described = json.loads((folder / "model.json").read_text())
        limits = json.loads((folder / "limits.json").read_text())
        self.names = list(limits)  # features of a row, in their order
        self.shape_WF = (int(described["window"]["tokens"]), len(self.names))
        self.output = self.session.get_outputs()[0].name  # name of the output
        self.low_F = np.array([limits[name]["low"] for name in self.names], dtype=np.float32)
        self.high_F = np.array([limits[name]["high"] for name in self.names], dtype=np.float32)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with its forecasts, or its own error; good ones are computed together."""
        windows, errors = [], []
        for request in requests:
            x_BWF = triton.get_input_tensor_by_name(request, "window").as_numpy()
            errors.append(self._error(x_BWF))
            if not errors[-1]:
                windows.append(x_BWF)
        if windows:
            # (B of all good requests, W, F) -> (same B, H)
            (y_BH,) = self.session.run(None, {"window": np.concatenate(windows)})
            parts = iter(np.split(y_BH, np.cumsum([len(x) for x in windows])[:-1]))
        responses = []
        for error in errors:
            if error:
                failure = triton.TritonError(error, triton.TritonError.INVALID_ARG)
                responses.append(triton.InferenceResponse(error=failure))
            else:
                output = triton.Tensor(self.output, np.ascontiguousarray(next(parts)))
                responses.append(triton.InferenceResponse(output_tensors=[output]))
        return responses

    def _error(self, x_BWF: np.ndarray) -> str | None:
        """Return what is wrong with a request's windows, or None."""
        if x_BWF.ndim != 3 or x_BWF.shape[1:] != self.shape_WF or not len(x_BWF):
            w, f = self.shape_WF
            return f"window has shape {list(x_BWF.shape)}, this version takes [-1, {w}, {f}]"
        # Written so that NaN, which compares false with everything, is out of range as well.
        bad_F = ~((x_BWF >= self.low_F) & (x_BWF <= self.high_F)).all(axis=(0, 1))
        if bad_F.any():
            f = int(np.argmax(bad_F))
            return f"window: {self.names[f]} is NaN or outside [{self.low_F[f]:g}, {self.high_F[f]:g}]"
        return None
