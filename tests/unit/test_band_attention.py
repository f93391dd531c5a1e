"""Attention to runs of keys: the literal form, with a mask over all keys, in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from swiftqueue.models.networks.band_attention import BandSpans, attend

ROWS, KEYS = 37, 150


def literally(query: Tensor, key: Tensor, value: Tensor, sink: Tensor, runs: BandSpans) -> Tensor:
    """The same of one mask (R, E + 1), the sink first."""
    place = torch.arange(KEYS)
    seen = (place < runs.end_R[:, None]) & (place >= (runs.end_R - runs.seen_R)[:, None])
    seen = torch.cat([torch.ones(ROWS, 1, dtype=torch.bool), seen], 1)
    by_head = [
        each.double().view(len(each), runs.heads, -1).transpose(0, 1)
        for each in (query, torch.cat([sink[:1], key]), torch.cat([sink[1:], value]))
    ]
    scores = by_head[0] @ by_head[1].transpose(1, 2) / by_head[0].shape[-1] ** 0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return (weights @ by_head[2]).transpose(0, 1).flatten(1)


@pytest.mark.parametrize(("heads", "width", "band"), [(4, 16, 64), (2, 40, 128), (3, 5, 64)])
def test_it_and_its_gradients_are_those_of_the_literal_form(heads: int, width: int, band: int) -> None:
    random = torch.Generator().manual_seed(1)
    given = [
        torch.randn(rows, heads * width, generator=random).requires_grad_() for rows in (ROWS, KEYS, KEYS, 2)
    ]
    end_R = torch.randint(0, KEYS + 1, (ROWS,), generator=random)
    seen_R = torch.minimum(end_R, torch.randint(0, band + 1, (ROWS,), generator=random))
    seen_R[:9] = end_R[:9].clamp(max=band)
    runs = BandSpans(end_R, seen_R, band, heads)
    weight_RD = torch.randn(ROWS, heads * width, generator=random)
    got, wanted = (form(*given, runs) for form in (attend, literally))
    torch.testing.assert_close(got, wanted.float(), rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad((found * weight_RD).sum(), given) for found in (got, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("end", "seen"), [(4, 1), (1, 2), (3, 3)])
def test_a_run_outside_the_keys_is_refused(end: int, seen: int) -> None:
    runs = BandSpans(torch.tensor([end]), torch.tensor([seen]), 2, 1)
    with pytest.raises(ValueError, match="a row sees keys outside of 0 to 3"):
        attend(torch.ones(1, 4), torch.ones(3, 4), torch.ones(3, 4), torch.ones(2, 4), runs)
