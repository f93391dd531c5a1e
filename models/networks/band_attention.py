"""Compute attention in which each row sees consecutive keys and one key that all rows see, the sink.

It is our own code, since a framework's attention needs the keys of each row gathered and padded, which costs
more than the products.

Shapes: R rows, E keys, D width of all heads, A heads, K band.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from swiftqueue.common import native

SOURCES: Final = ("band_attention.cc", "Makefile")

_library = native.load(
    Path(__file__).parent / "_build" / "libswiftqueue_attention.so",
    SOURCES,
    {
        "sq_band_products": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
        "sq_band_sums": (None, [c_void_p] * 4),
        "sq_band_spread": (None, [c_void_p] * 4),
    },
)


class _AttentionArguments(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "heads", "width", "band")),
        *((name, c_void_p) for name in ("end", "seen")),
    )


@dataclass(frozen=True)
class BandSpans:
    """The keys that each row sees: the `seen_R` keys before `end_R`, at most `band`."""

    end_R: Tensor
    seen_R: Tensor
    band: int
    heads: int

    def of(self, row_RD: Tensor) -> Any:
        """Return the spans as the library takes them."""
        width = row_RD.shape[1] // self.heads
        return byref(
            _AttentionArguments(
                len(row_RD), self.heads, width, self.band, self.end_R.data_ptr(), self.seen_R.data_ptr()
            )
        )


def attend(query_RD: Tensor, key_ED: Tensor, value_ED: Tensor, sink: Tensor, runs: BandSpans) -> Tensor:
    """Return each row's weighted mean of the values that it sees (R, D).

    The weights are the softmax of the row's query times the keys.

    Args:
        query_RD: queries; like all tensors, on the CPU and with 32 bits.
        key_ED: keys that rows may see.
        value_ED: values of these keys.
        sink: key and value of the sink (2, D).
        runs: the keys that each row sees.

    Raises:
        ValueError: a run lies outside these keys.
    """
    begin, end, most = (runs.end_R - runs.seen_R).min(), runs.end_R.max(), runs.seen_R.max()
    if begin < 0 or end > len(key_ED) or most > runs.band:
        raise ValueError(f"a row sees keys outside of 0 to {len(key_ED)}, or more than {runs.band}")
    key, value = (torch.cat([sink[n : n + 1], each]) for n, each in enumerate((key_ED, value_ED)))
    scale = (query_RD.shape[1] // runs.heads) ** -0.5
    weight_RAK: Tensor = torch.softmax(_Products.apply(query_RD * scale, key, runs), -1)
    return _Sums.apply(weight_RAK, value, runs)  # type: ignore[no-any-return]


class _Products(Function):
    """The products of rows and the keys that they see (R, A, K + 1); minus infinity for other keys."""

    @staticmethod
    def forward(ctx: Any, row_RD: Tensor, key_ED: Tensor, runs: BandSpans) -> Tensor:
        ctx.runs = runs
        ctx.save_for_backward(row_RD, key_ED)
        return _products(row_RD, key_ED, runs, -torch.inf)

    @staticmethod
    def backward(ctx: Any, given_RAK: Tensor) -> tuple[Tensor, Tensor, None]:
        row_RD, key_ED = ctx.saved_tensors
        given_RAK = given_RAK.contiguous()
        return _sums(given_RAK, key_ED, ctx.runs), _spread(given_RAK, row_RD, key_ED, ctx.runs), None


class _Sums(Function):
    """The weighted sums of the values that rows see (R, D)."""

    @staticmethod
    def forward(ctx: Any, weight_RAK: Tensor, value_ED: Tensor, runs: BandSpans) -> Tensor:
        ctx.runs = runs
        ctx.save_for_backward(weight_RAK, value_ED)
        return _sums(weight_RAK, value_ED, runs)

    @staticmethod
    def backward(ctx: Any, given_RD: Tensor) -> tuple[Tensor, Tensor, None]:
        weight_RAK, value_ED = ctx.saved_tensors
        given_RD, runs = given_RD.contiguous(), ctx.runs
        return _products(given_RD, value_ED, runs, 0.0), _spread(weight_RAK, given_RD, value_ED, runs), None


def _products(row_RD: Tensor, key_ED: Tensor, runs: BandSpans, unseen: float) -> Tensor:
    row_RD, key_DE = row_RD.contiguous(), key_ED.t().contiguous()
    found_RAK = torch.full((len(row_RD), runs.heads, runs.band + 1), unseen)
    _library.sq_band_products(
        runs.of(row_RD), row_RD.data_ptr(), key_DE.data_ptr(), len(key_ED), found_RAK.data_ptr()
    )
    return found_RAK


def _sums(weight_RAK: Tensor, value_ED: Tensor, runs: BandSpans) -> Tensor:
    found_RD = torch.empty(len(weight_RAK), value_ED.shape[1])
    _library.sq_band_sums(runs.of(found_RD), weight_RAK.data_ptr(), value_ED.data_ptr(), found_RD.data_ptr())
    return found_RD


def _spread(weight_RAK: Tensor, row_RD: Tensor, like_ED: Tensor, runs: BandSpans) -> Tensor:
    found_ED = torch.zeros_like(like_ED)
    _library.sq_band_spread(runs.of(row_RD), weight_RAK.data_ptr(), row_RD.data_ptr(), found_ED.data_ptr())
    return found_ED
