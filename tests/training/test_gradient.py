"""The gradient of a batch is that of separate rows, however the batch is packed, ordered, cut or shared.

The yardstick shares no code with the trainer: transformers' model in float64, one row at a time, without padding, the
adapter merged into the weights inside the graph, and the loss written out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from torch import Tensor

from posttrain.inference.architecture import Architecture
from posttrain.inference.lora import LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.training.grpo import GRPO
from posttrain.training.packing import Family, Member
from posttrain.training.sft import SFT
from posttrain.training.trainer import TokenLoss, Trainer

RELATIVE = 1e-5
Gradients = dict[str, Tensor]
ARCHITECTURE = Architecture.from_config(tiny.CONFIG)
STATE = tiny.random_state()


def families_of(seed: int, stem_tokens: int, sizes: list[int]) -> list[Family]:
    """Groups behind a common stem; some tokens masked; log-probabilities near and beyond the clipping range."""
    rng = random.Random(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(40) for _ in range(n))

    stem = ids(stem_tokens)
    out = []
    for i, size in enumerate(sizes):
        prefix = stem + ids(rng.choice([0, 1, 6])) or ids(1)
        members = []
        for _ in range(size):
            n = rng.choice([1, 2, 9])
            weight = tuple(rng.choice([0.0, 0.01, 0.01, 0.02]) for _ in range(n))
            advantage = (rng.uniform(-2, 2),) * n
            sampled = tuple(rng.uniform(-5, -2.5) if w else math.nan for w in weight)
            members.append(Member(ids(n), weight, advantage, sampled))
        out.append(Family(prefix, tuple(members), f"domain {i % 2}"))
    return out


def trained(
    families: list[Family], loss: TokenLoss, temperature: float, micro_batch_tokens: int
) -> tuple[float, Gradients]:
    """Loss and gradient by the code under test."""
    adapter = tiny.random_adapter(ARCHITECTURE, size=0.1)
    trainer = Trainer(Transformer(ARCHITECTURE, STATE, dtype=torch.float32), adapter.parameters(), adapter.fused)
    with pytest.MonkeyPatch.context() as patch:  # the made-up log-probabilities are of no policy at all
        patch.setattr(Trainer, "_same_policy", lambda *_: None)
        seen = trainer.forward_backward(families, loss, temperature=temperature, micro_batch_tokens=micro_batch_tokens)
    return seen.loss, {name: _grad(p) for name, p in adapter.parameters().items()}


def by_hand(
    families: list[Family], token_loss: Callable[[Tensor, float, float], Tensor], temperature: float
) -> tuple[float, Gradients]:
    """The same in float64 with transformers, row by row."""
    model = transformers_model()
    adapter = double(tiny.random_adapter(ARCHITECTURE, size=0.1))
    weights = merged(model, adapter)
    total = torch.zeros((), dtype=torch.float64)
    for family in families:
        for member in family.members:
            row = torch.tensor([[*family.prefix, *member.ids]])
            logits = torch.func.functional_call(model, weights, (row,)).logits[0] / temperature
            logprobs = logits.log_softmax(-1)
            for i, token in enumerate(member.ids):
                if member.weight[i]:
                    logprob = logprobs[len(family.prefix) + i - 1, token]
                    total = total + member.weight[i] * token_loss(
                        logprob, member.sampled_logprob[i], member.advantage[i]
                    )
    total.backward()  # type: ignore[no-untyped-call,unused-ignore]
    return float(total.detach()), {name: _grad(p) for name, p in adapter.parameters().items()}


def transformers_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    model: Any = LlamaForCausalLM(LlamaConfig(**tiny.CONFIG))
    model.double()
    model.load_state_dict({k: v.double() for k, v in STATE.items()}, strict=False)
    model.config._attn_implementation = "eager"
    return model


def double(adapter: LoraAdapter) -> LoraAdapter:
    for matrices in (adapter.a, adapter.b):
        for key, tensor in matrices.items():
            matrices[key] = tensor.detach().double().requires_grad_()
    return adapter


def merged(model: torch.nn.Module, adapter: LoraAdapter) -> dict[str, Tensor]:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    for (layer, projection), a in adapter.a.items():
        block = "self_attn" if projection in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
        name = f"model.layers.{layer}.{block}.{projection}.weight"
        weights[name] = weights[name] + 8 / 4 * adapter.b[layer, projection] @ a  # alpha 8, rank 4
    return weights


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad.double()


def distance(one: Gradients, other: Gradients) -> float:
    """Relative difference of two gradients (L2 over all parameters)."""
    off = sum(float((one[name] - other[name]).square().sum()) for name in other)
    size = sum(float(g.square().sum()) for g in other.values())
    return math.sqrt(off / size)


def clipped_surrogate(logprob: Tensor, sampled: float, advantage: float) -> Tensor:
    """PPO's objective as its paper writes it (arXiv 1707.06347, equation 7), negated."""
    ratio = torch.exp(logprob - sampled)
    inside = min(max(float(ratio.detach()), 0.8), 1.2)
    if float(ratio.detach()) * advantage <= inside * advantage:
        return -ratio * advantage
    return torch.zeros(()) * ratio - inside * advantage


@pytest.mark.parametrize("stem_tokens", [0, 3, 20])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_is_that_of_separate_rows_in_float64(stem_tokens: int, temperature: float) -> None:
    families = families_of(stem_tokens, stem_tokens, [3, 1, 2])
    value, expected = by_hand(families, clipped_surrogate, temperature)
    loss, gradients = trained(families, GRPO(), temperature, 1024)
    assert loss == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert distance(gradients, expected) <= RELATIVE


def test_the_gradient_of_supervised_tokens_is_that_of_separate_rows_in_float64() -> None:
    families = families_of(1, 20, [2, 2])
    value, expected = by_hand(families, lambda logprob, *_: -logprob, 1.0)
    loss, gradients = trained(families, SFT(), 1.0, 64)
    assert loss == pytest.approx(value, rel=1e-5)
    assert distance(gradients, expected) <= RELATIVE


@given(
    seed=st.integers(0, 2**32),
    stem_tokens=st.sampled_from([0, 15, 16, 30]),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    micro_batch_tokens=st.sampled_from([1, 40, 90, 4096]),
    rng=st.randoms(use_true_random=False),
    apart=st.booleans(),
)
@settings(max_examples=30)
def test_packing_order_and_micro_batches_do_not_change_the_gradient(
    seed: int, stem_tokens: int, sizes: list[int], micro_batch_tokens: int, rng: random.Random, apart: bool
) -> None:
    families = families_of(seed, stem_tokens, sizes)
    if not any(w for f in families for m in f.members for w in m.weight):
        return
    value, expected = trained(families, GRPO(), 1.0, 4096)
    other = list(families)
    if apart:  # every attempt computes its prompt itself
        other = [replace(f, members=(m,)) for f in other for m in f.members]
    rng.shuffle(other)
    loss, gradients = trained(other, GRPO(), 1.0, micro_batch_tokens)
    assert loss == pytest.approx(value, rel=1e-4, abs=1e-6)
    size = sum(float(g.square().sum()) for g in expected.values())
    assert size == 0 or distance(gradients, expected) <= RELATIVE


def test_two_half_batches_add_up_to_the_whole() -> None:
    families = families_of(5, 20, [3, 2, 4])
    _, expected = trained(families, SFT(), 1.0, 1024)
    _, first = trained(families[:1], SFT(), 1.0, 1024)
    _, rest = trained(families[1:], SFT(), 1.0, 1024)
    assert distance({name: first[name] + rest[name] for name in first}, expected) <= RELATIVE


def test_tokens_the_policy_did_not_write_carry_no_gradient() -> None:
    """What stands at a masked place (its advantage, its log-probability) changes nothing."""
    families = families_of(3, 20, [3, 3])
    changed = [
        replace(
            f,
            members=tuple(replace(m, advantage=_where_masked(m, 1e6), sampled_logprob=_logprobs(m)) for m in f.members),
        )
        for f in families
    ]
    assert changed != families
    assert distance(trained(changed, GRPO(), 1.0, 64)[1], trained(families, GRPO(), 1.0, 64)[1]) <= RELATIVE


def _where_masked(member: Member, value: float) -> tuple[float, ...]:
    return tuple(a if w else value for a, w in zip(member.advantage, member.weight, strict=True))


def _logprobs(member: Member) -> tuple[float, ...]:
    return tuple(p if w else 0.0 for p, w in zip(member.sampled_logprob, member.weight, strict=True))


def test_all_weights_train_as_well_as_an_adapter() -> None:
    """Tied embeddings included: their gradient comes from both ends of the model."""
    families = families_of(2, 0, [2, 2])
    model = Transformer(ARCHITECTURE, STATE, dtype=torch.float32)
    for parameter in model.parameters().values():
        parameter.requires_grad_()
    Trainer(model, model.parameters()).forward_backward(families, SFT(), micro_batch_tokens=64)
    theirs = transformers_model()
    total = torch.zeros((), dtype=torch.float64)
    for family in families:
        for member in family.members:
            logprobs = theirs(torch.tensor([[*family.prefix, *member.ids]])).logits[0].log_softmax(-1)
            for i, (token, weight) in enumerate(zip(member.ids, member.weight, strict=True)):
                total = total - weight * logprobs[len(family.prefix) + i - 1, token]
    total.backward()  # type: ignore[no-untyped-call,unused-ignore]
    expected = {name: _grad(p) for name, p in theirs.named_parameters()}
    ours = model.parameters()
    found = {
        "model.embed_tokens.weight": _grad(ours["embed"]),
        "model.norm.weight": _grad(ours["norm"]),
    }
    for i in range(ARCHITECTURE.layers):
        name = f"model.layers.{i}"
        qkv = _grad(ours[f"layers.{i}.qkv"]).split(ARCHITECTURE.qkv_sizes)
        found |= {f"{name}.self_attn.{p}_proj.weight": g for p, g in zip("qkv", qkv, strict=True)}
        gate, up = _grad(ours[f"layers.{i}.gate_up"]).chunk(2)
        found |= {f"{name}.mlp.gate_proj.weight": gate, f"{name}.mlp.up_proj.weight": up}
        found |= {f"{name}.mlp.down_proj.weight": _grad(ours[f"layers.{i}.down"])}
        found |= {f"{name}.self_attn.o_proj.weight": _grad(ours[f"layers.{i}.out"])}
        found |= {f"{name}.input_layernorm.weight": _grad(ours[f"layers.{i}.norm_attention_d"])}
        found |= {f"{name}.post_attention_layernorm.weight": _grad(ours[f"layers.{i}.norm_mlp_d"])}
    assert set(found) == set(expected)
    assert distance(found, expected) <= RELATIVE


def test_a_member_whose_columns_differ_in_length_is_refused() -> None:
    with pytest.raises(ValueError, match="as many"):
        Member((1, 2), (1.0,), (1.0, 1.0), (0.0, 0.0))
    with pytest.raises(ValueError, match="prefix"):
        Family((), (Member((1,), (1.0,), (1.0,), (0.0,)),))
