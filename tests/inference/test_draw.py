"""Tokens are drawn from exactly the distribution that is reported, and can be drawn again."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.inference.logprobs import CHUNK_TOKENS, EXACT_TOP, head_logits, token_logprobs
from posttrain.inference.sampling import SampleRequest, draw, uniforms

ALMOST_ONE = 1 - 2.0**-24


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_drawn_tokens_have_the_reported_frequencies(temperature: float) -> None:
    """Chi-square over 12 tokens and 40,000 draws; 42.3 is passed once in 67,000 runs (11 degrees of freedom)."""
    n = 40_000
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0)) * 1.5
    uniform = torch.from_numpy(uniforms(7, 0, n)).float()
    tokens, logprobs = draw(logits.expand(n, -1), uniform, temperature)
    exact = (logits.double() / temperature).softmax(-1)
    expected = exact * n
    counts = torch.bincount(tokens, minlength=12).double()
    kept = expected >= 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < 42.3
    assert torch.allclose(logprobs.double(), exact.log()[tokens], atol=1e-5)


def test_temperature_zero_takes_the_largest_logit_whatever_the_uniform() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9], [5.0, -1.0, 4.0]])
    for u in (0.0, 0.5, ALMOST_ONE):
        tokens, logprobs = draw(logits, torch.full((2,), u), 0.0)
        assert tokens.tolist() == [1, 0]
        assert torch.allclose(logprobs, logits.log_softmax(-1)[[0, 1], [1, 0]])


@given(
    st.lists(st.sampled_from([0.0, -1.0, 5.0, -30.0, -200.0, 1e4, -1e4, -math.inf]), min_size=1, max_size=40),
    st.floats(0, ALMOST_ONE, width=32),
    st.floats(0.05, 5),
)
@settings(max_examples=300)
def test_a_token_without_probability_is_never_drawn(logits: list[float], u: float, temperature: float) -> None:
    if not any(math.isfinite(x) for x in logits):
        return
    row = torch.tensor([logits])
    for point in (u, 0.0, ALMOST_ONE):
        tokens, logprobs = draw(row, torch.tensor([point]), temperature)
        probability = (row / temperature).softmax(-1)[0, tokens[0]]
        assert probability > 0
        assert math.isfinite(float(logprobs)), "the trainer would compare with infinity"


def test_the_ends_of_the_unit_interval_point_at_the_first_and_last_token_that_can_be_drawn() -> None:
    logits = torch.full((1, 50_000), 0.0)
    logits[0, :3] = -math.inf
    logits[0, -2:] = -math.inf
    assert draw(logits, torch.tensor([0.0]), 1.0)[0].tolist() == [3]
    last = int(draw(logits, torch.tensor([ALMOST_ONE]), 1.0)[0])
    assert 49_000 < last < 49_998


def test_uniforms_depend_on_seed_and_place_alone_and_stay_below_one() -> None:
    whole = uniforms(3, 0, 100)
    assert np.array_equal(uniforms(3, 40, 20), whole[40:60])
    assert not np.array_equal(uniforms(4, 0, 100), whole)
    assert whole.min() >= 0
    assert whole.max() <= ALMOST_ONE
    assert np.float32(ALMOST_ONE) < 1.0
    assert np.array_equal(uniforms(2**64 - 1, 0, 3), uniforms(-1, 0, 3))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prefix": ()}, "empty prompt"),
        ({"seeds": ()}, "one seed"),
        ({"branches": ((), ())}, "one seed"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
    ],
)
def test_a_request_that_can_not_be_answered_is_refused(change: dict[str, object], said: str) -> None:
    good: dict[str, object] = {"prefix": (1,), "branches": ((),), "seeds": (0,), "max_new_tokens": 4}
    with pytest.raises(ValueError, match=said):
        SampleRequest(**(good | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("tokens", [1, CHUNK_TOKENS, CHUNK_TOKENS + 3])
def test_log_probabilities_and_their_gradients_equal_those_of_whole_logits(tokens: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, 16, generator=generator)
    head = torch.randn(33, 16, generator=generator)
    targets = torch.randint(0, 33, (tokens,), generator=generator)
    weight = torch.randn(tokens, generator=generator)

    h64, w64 = hidden.double().requires_grad_(), head.double().requires_grad_()
    whole = ((h64 @ w64.t()) / temperature).log_softmax(-1)
    (whole.gather(1, targets[:, None])[:, 0] * weight.double()).sum().backward()  # type: ignore[no-untyped-call,unused-ignore]

    h, w = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    logprobs, entropy = token_logprobs(h, w, targets, temperature)
    (logprobs * weight).sum().backward()  # type: ignore[no-untyped-call,unused-ignore]

    assert torch.allclose(logprobs.double(), whole.gather(1, targets[:, None])[:, 0], atol=1e-4)
    assert torch.allclose(entropy.double(), -(whole.exp() * whole).sum(-1), atol=1e-4)
    for ours, theirs in ((h.grad, h64.grad), (w.grad, w64.grad)):
        assert ours is not None
        assert theirs is not None
        assert (ours.double() - theirs).norm() <= 1e-5 * theirs.norm()


def test_the_entropy_carries_no_gradient_and_an_empty_batch_no_error() -> None:
    hidden = torch.randn(2, 4, requires_grad=True)
    _, entropy = token_logprobs(hidden, torch.randn(5, 4), torch.tensor([0, 1]))
    assert not entropy.requires_grad
    logprobs, entropy = token_logprobs(hidden[:0], torch.randn(5, 4), torch.tensor([], dtype=torch.long))
    assert len(logprobs) == len(entropy) == 0
    logprobs.sum().backward()  # type: ignore[no-untyped-call,unused-ignore]


def test_a_frozen_head_costs_no_gradient() -> None:
    hidden, head = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    token_logprobs(hidden, head, torch.tensor([0, 1, 2]))[0].sum().backward()  # type: ignore[no-untyped-call,unused-ignore]
    assert head.grad is None
    assert hidden.grad is not None


def test_the_bfloat16_head_is_exact_where_the_probability_is() -> None:
    generator = torch.Generator().manual_seed(3)
    head = torch.randn(2000, 64, generator=generator)
    hidden = 1.5 * torch.randn(40, 64, generator=generator)
    low = head.to(torch.bfloat16)
    exact, rounded = head_logits(hidden, head), (hidden.to(torch.bfloat16) @ low.t()).float()
    found = head_logits(hidden, head, low)
    top = exact.topk(EXACT_TOP // 2, dim=-1).indices
    assert (found - exact).gather(1, top).abs().max() < 1e-4 < (rounded - exact).gather(1, top).abs().max()
    chosen = exact.argmax(-1)
    got, _ = token_logprobs(hidden, head, chosen, 1.0, low)
    want, _ = token_logprobs(hidden, head, chosen)
    assert (got - want).abs().max() < 1e-3


def test_the_gradient_through_the_bfloat16_head_is_that_of_float32_but_for_rounding() -> None:
    generator = torch.Generator().manual_seed(4)
    head = torch.randn(500, 32, generator=generator)
    targets = torch.randint(0, 500, (30,), generator=generator)
    grads = []
    for low in (None, head.to(torch.bfloat16)):
        hidden = torch.randn(30, 32, generator=torch.Generator().manual_seed(5)).requires_grad_()
        token_logprobs(hidden, head, targets, 1.0, low)[0].sum().backward()  # type: ignore[no-untyped-call,unused-ignore]
        assert hidden.grad is not None
        grads.append(hidden.grad)
    assert (grads[0] - grads[1]).norm() / grads[0].norm() < 1e-2
