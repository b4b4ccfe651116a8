"""Samples of another policy are refused before they train anything, and what is not a number is never applied."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests import tiny

from posttrain.inference.lora import LoRA
from posttrain.inference.sampling import SampleRequest
from posttrain.loop.policy import Policy
from posttrain.training.grpo import GRPO
from posttrain.training.packing import Family, Member
from posttrain.training.sft import SFT
from posttrain.training.trainer import NonFiniteLoss, PolicyMismatch, Trainer


@pytest.fixture
def policy() -> Policy:
    made = tiny.load_policy(adapter=LoRA(4, 8))
    assert made.adapter is not None
    tiny.randomise(made.adapter)
    return made


def sampled(policy: Policy, temperature: float = 1.0, groups: int = 6) -> list[Family]:
    """Real samples as families, with an advantage."""
    prompts = [tuple(policy.renderer.encode(f"rev {a}{b}c{a}=")) for a in "abc" for b in "defg"][:groups]
    requests = [SampleRequest(p, ((),) * 4, (0, 1, 2, 3), 8, temperature, ("\n",)) for p in prompts]
    families = []
    for request, samples in zip(requests, policy.sample(requests), strict=True):
        members = []
        for i, s in enumerate(samples):
            n = len(s.token_ids)
            members.append(Member(s.token_ids, (0.01,) * n, (1.0 if i % 2 else -1.0,) * n, s.logprobs))
        families.append(Family(request.prefix, tuple(members), "reverse"))
    return families


def weights(policy: Policy) -> list[torch.Tensor]:
    assert policy.adapter is not None
    return [p.detach().clone() for p in policy.adapter.parameters().values()]


def no_gradient(policy: Policy) -> bool:
    assert policy.adapter is not None
    return all(p.grad is None for p in policy.adapter.parameters().values())


def refused(policy: Policy, families: list[Family], temperature: float = 1.0) -> None:
    with pytest.raises(PolicyMismatch, match="nothing was trained"):
        policy.forward_backward(families, GRPO(), temperature=temperature, micro_batch_tokens=64)
    assert no_gradient(policy), "half of a refused batch would leak into the next update"


def test_samples_of_this_policy_are_accepted(policy: Policy) -> None:
    for temperature in (1.0, 0.7):
        seen = policy.forward_backward(sampled(policy, temperature), GRPO(), temperature=temperature)
        assert 0 < seen.logprob_gap_max <= 1e-4
        assert seen.logprob_gap_mean <= seen.logprob_gap_max


def test_samples_of_a_stale_adapter_stop_the_run(policy: Policy) -> None:
    families = sampled(policy)
    policy.forward_backward(families, GRPO())
    policy.optim_step(3e-3)
    refused(policy, families)


def test_an_engine_that_still_reads_the_old_adapter_is_noticed(policy: Policy) -> None:
    assert policy.adapter is not None
    sampled(policy)  # casts the adapter of this version
    with torch.no_grad():
        for b in policy.adapter.b.values():
            b.mul_(1.2)  # changed behind the version's back
    refused(policy, sampled(policy))


def test_a_temperature_other_than_that_of_sampling_stops_the_run(policy: Policy) -> None:
    refused(policy, sampled(policy, 0.8), temperature=1.0)
    refused(policy, sampled(policy, 1.0), temperature=0.9)


def test_a_mask_shifted_by_one_token_stops_the_run(policy: Policy) -> None:
    def shifted(m: Member) -> Member:
        return replace(m, sampled_logprob=(*m.sampled_logprob[1:], m.sampled_logprob[0]))

    refused(policy, [replace(f, members=tuple(map(shifted, f.members))) for f in sampled(policy)])


def test_a_tensor_that_the_trainer_does_not_share_with_the_engine_stops_the_run(policy: Policy) -> None:
    assert policy.adapter is not None
    families = sampled(policy)
    twin = policy.adapter.copy(torch.float32)
    with torch.no_grad():
        twin.b[0, "v_proj"].zero_()
    for parameter in twin.parameters().values():
        parameter.requires_grad_()
    with pytest.raises(PolicyMismatch):
        Trainer(policy.model, twin.parameters(), twin.fused).forward_backward(families, GRPO())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_applies_nothing_and_leaves_nothing(policy: Policy, value: float) -> None:
    families, before = sampled(policy), weights(policy)
    last = families[-1]
    broken = replace(last, members=tuple(replace(m, advantage=(value,) * len(m.ids)) for m in last.members))
    with pytest.raises(NonFiniteLoss, match="reverse"):
        policy.forward_backward([*families[:-1], broken], GRPO(), micro_batch_tokens=64)
    assert no_gradient(policy)
    assert policy.version == 0
    assert all(map(torch.equal, weights(policy), before))


def test_a_gradient_that_is_not_finite_is_not_applied(policy: Policy) -> None:
    policy.forward_backward(sampled(policy), GRPO())
    before = weights(policy)
    assert policy.adapter is not None
    gradient = policy.adapter.b[1, "o_proj"].grad
    assert gradient is not None
    gradient[0, 0] = math.nan
    with pytest.raises(NonFiniteLoss, match="not applied"):
        policy.optim_step(1e-3)
    assert no_gradient(policy)
    assert policy.version == 0
    assert all(map(torch.equal, weights(policy), before))


def test_the_step_is_that_of_adamw_on_the_clipped_gradient(policy: Policy) -> None:
    assert policy.adapter is not None
    twins = [p.detach().double().clone().requires_grad_() for p in policy.adapter.parameters().values()]
    optimizer = torch.optim.AdamW(twins, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(3):
        policy.forward_backward(sampled(policy), SFT())
        gradients = [p.grad for p in policy.adapter.parameters().values()]
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None))
        for twin, gradient in zip(twins, gradients, strict=True):
            assert gradient is not None
            twin.grad = gradient.double() * min(1.0, 0.05 / norm)
        assert policy.optim_step(2e-3, max_grad_norm=0.05) == pytest.approx(norm, rel=1e-4)
        optimizer.step()
    assert norm > 0.05, "the clipping of this test clips nothing"
    for twin, parameter in zip(twins, policy.adapter.parameters().values(), strict=True):
        assert torch.allclose(twin.float(), parameter, atol=1e-5)


def test_metrics_are_those_of_the_batch(policy: Policy) -> None:
    families = sampled(policy)
    seen = policy.forward_backward(families, GRPO(), micro_batch_tokens=64)
    logprobs = [p for f in families for m in f.members for p in m.sampled_logprob]
    assert seen.tokens == len(logprobs)
    assert seen.nll == pytest.approx(-sum(logprobs) / len(logprobs), abs=1e-4)
    assert seen.computed_tokens >= seen.tokens + len(families)
    assert 0 < seen.entropy < math.log(tiny.CONFIG["vocab_size"])
    # on-policy the ratio is 1: the loss is minus the weighted sum of advantages
    expected = -sum(w * a for f in families for m in f.members for w, a in zip(m.weight, m.advantage, strict=True))
    assert seen.loss == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rate", [-1e-3, math.nan, math.inf])
def test_an_absurd_learning_rate_is_refused(policy: Policy, rate: float) -> None:
    with pytest.raises(ValueError, match="learning rate"):
        policy.optim_step(rate)
    with pytest.raises(ValueError, match="max_grad_norm"):
        policy.optim_step(1e-3, max_grad_norm=0.0)


def test_a_trainer_with_nothing_to_train_says_so(policy: Policy) -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        Trainer(policy.model, {})
