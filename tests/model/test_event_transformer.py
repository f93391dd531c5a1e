"""The event network gives one answer by segments, by tiles and by plain attention with a mask."""

from __future__ import annotations

import pytest
import torch
from event_memory import ask, extend
from torch import Tensor, nn

from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
from swiftqueue.models.event_stream.parameters import BLOCK
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling, transform_of

EVENT = tuple(i for i in INPUTS if i.rows != "queries")
QUERY = tuple(i for i in INPUTS if i.rows != "events")
EVENTS, DECISIONS = 6 * BLOCK, 40


def network(**sizes: object) -> EventPredictor:
    """Return a network of random weights, in the head too."""
    torch.manual_seed(1)
    scaled = {i.name: ScaledFeature(i.name, i.unit, transform_of(i.unit), 1.0, 2.0) for i in INPUTS}
    events, queries = ([scaled[i.name] for i in inputs] for inputs in (EVENT, QUERY))
    model = EventPredictor(events, queries, TargetScaling("log", 9.0, 1.0), EventArchitecture(**sizes))  # type: ignore[arg-type]
    nn.init.normal_(model.head[2].weight)
    return model.eval()


def whole(model: EventPredictor, x_GNF: Tensor, ack_GN: Tensor, cut_Q: Tensor, x_QHP: Tensor) -> Tensor:
    """Return latencies in µs (Q, H) of decisions in segments of a log."""
    return model.to_us(model.scaled(x_GNF, ack_GN, cut_Q, x_QHP))


def log(seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random events (N, F), whether each is an ACK, ascending cuts of decisions, and their queries."""
    random = torch.Generator().manual_seed(seed)
    x_NF = torch.rand(EVENTS, len(EVENT), generator=random) * 1000
    ack_N = torch.rand(EVENTS, generator=random) > 0.5
    cut_Q = torch.randint(1, EVENTS + 1, (DECISIONS,), generator=random).sort().values
    return x_NF, ack_N, cut_Q, torch.rand(DECISIONS, 8, len(QUERY), generator=random) * 1000


SIZES = [{"layers": 1}, {"layers": 2}, {"layers": 3, "band": 128, "width": 32, "heads": 2, "anchor": None}]


@pytest.mark.parametrize("sizes", SIZES)
def test_tiles_of_a_live_sender_give_the_answers_of_the_whole_log(sizes: dict[str, object]) -> None:
    model = network(**sizes)
    x_NF, ack_N, cut_Q, x_QHP = log()
    with torch.inference_mode():
        whole_QH = whole(model, x_NF[None], ack_N[None], cut_Q, x_QHP)
        memory, done = model.empty(), 0
        for decision, cut in enumerate(cut_Q.tolist()):
            memory, done = extend(model, memory, x_NF[done:cut], ack_N[done:cut]), cut
            assert max(map(len, memory.keys)) <= model.sizes.band
            torch.testing.assert_close(
                ask(model, memory, x_QHP[decision]), whole_QH[decision], rtol=1e-5, atol=1e-3
            )
        assert ask(model, model.empty(), x_QHP[0]).isfinite().all()


@pytest.mark.parametrize("sizes", SIZES)
def test_the_blocks_are_attention_under_a_banded_mask(sizes: dict[str, object]) -> None:
    """The literal form: one mask over all events and one query, one decision after the other."""
    model = network(**sizes)
    x_NF, ack_N, cut_Q, x_QHP = log()
    band, here = model.sizes.band, torch.arange(EVENTS)
    with torch.inference_mode():
        blocks_QH = whole(model, x_NF[None], ack_N[None], cut_Q, x_QHP)
        for decision, cut in enumerate(cut_Q.tolist()):
            x_ND = torch.where(
                ack_N[:, None], model.ack(model.event_scaling(x_NF)), model.send(model.event_scaling(x_NF))
            )
            u_HD = model.ask_about(model.query_scaling(x_QHP[decision]))
            for layer in model.layers:
                keys, values = layer.keys_and_values(x_ND)  # type: ignore[operator]
                u_HD = layer(u_HD, keys, values, ((here < cut) & (here >= cut - band))[None])
                seen_NN = (here <= here[:, None]) & (here > here[:, None] - band)
                x_ND = layer(x_ND, keys, values, seen_NN)
            us_H = torch.exp(model.answer(model.norm(u_HD), x_QHP[decision]) + 9.0).clamp(1, 60e6)
            torch.testing.assert_close(us_H, blocks_QH[decision], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_last_decisions_have_the_same_answers_without_the_earlier_ones(sizes: dict[str, object]) -> None:
    """Then the first blocks of events are left out, as in the context before a segment."""
    model = network(**sizes)
    x_NF, ack_N, cut_Q, x_QHP = log()
    late = cut_Q >= EVENTS - 16
    with torch.inference_mode():
        whole_QH = whole(model, x_NF[None], ack_N[None], cut_Q, x_QHP)
        alone_QH = whole(model, x_NF[None], ack_N[None], cut_Q[late], x_QHP[late])
    assert late.any()
    torch.testing.assert_close(alone_QH, whole_QH[late], rtol=1e-6, atol=1e-4)


def test_segments_do_not_see_each_other_and_no_decision_sees_what_follows() -> None:
    model = network(layers=2)
    (x_NF, ack_N, cut_Q, x_QHP), (other_NF, other_N, _, _) = log(), log(2)
    cut = int(cut_Q[20])
    changed_NF = torch.cat([x_NF[:cut], other_NF[cut:]])
    with torch.inference_mode():
        alone_QH = whole(model, x_NF[None], ack_N[None], cut_Q, x_QHP)
        beside_QH = whole(
            model, torch.stack([other_NF, x_NF]), torch.stack([other_N, ack_N]), cut_Q + EVENTS, x_QHP
        )
        changed_QH = whole(model, changed_NF[None], ack_N[None], cut_Q, x_QHP)
    torch.testing.assert_close(alone_QH, beside_QH, rtol=1e-5, atol=1e-3)
    assert torch.equal(changed_QH[cut_Q <= cut], alone_QH[cut_Q <= cut])
    assert not torch.allclose(changed_QH[cut_Q > cut], alone_QH[cut_Q > cut])


def test_untrained_it_forecasts_its_anchor() -> None:
    model = network()
    nn.init.zeros_(model.head[2].weight)
    nn.init.zeros_(model.head[2].bias)
    x_NF, ack_N, cut_Q, x_QHP = log()
    x_QHP[:, 4:, model.anchor_index] = 0  # a flow without a latency: the sender's last one
    x_QHP[0, 7, [model.anchor_index, model.fallback_index]] = 0  # none at all: the mean
    expected_QH = x_QHP[..., model.anchor_index].clone()
    expected_QH[:, 4:] = x_QHP[:, 4:, model.fallback_index]
    expected_QH[0, 7] = torch.exp(torch.tensor(9.0))
    got_QH = whole(model, x_NF[None], ack_N[None], cut_Q, x_QHP)
    torch.testing.assert_close(got_QH, expected_QH.clamp(min=1), rtol=1e-4, atol=1e-2)


def test_gradients_reach_every_weight() -> None:
    model = network(layers=2).train()
    x_NF, ack_N, cut_Q, x_QHP = log()
    model.scaled(x_NF[None], ack_N[None], cut_Q, x_QHP).square().sum().backward()  # type: ignore[no-untyped-call]
    last = f"layers.{model.sizes.layers - 1}."
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.abs().sum() > 0) or name == f"{last}key_value.bias", name


@pytest.mark.parametrize("wrong", [{"band": 65}, {"heads": 3}, {"layers": 0}, {"dropout": 1.0}])
def test_impossible_sizes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not possible"):
        EventArchitecture(**wrong)  # type: ignore[arg-type]


def test_an_anchor_must_be_an_input() -> None:
    with pytest.raises(ValueError, match="the anchor needs the input gone_us"):
        network(anchor="gone_us")
