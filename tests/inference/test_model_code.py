"""The shared model code computes what transformers computes, and refuses by name what it would compute wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny

from posttrain.inference.architecture import Architecture, UnsupportedModel
from posttrain.inference.attention import ROOT, Tree, TreeAttention
from posttrain.inference.engine import Engine
from posttrain.inference.lora import LoRA, LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.inference.renderer import Renderer
from posttrain.inference.sampling import SampleRequest

SHAPES: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "one key head for all": {"num_key_value_heads": 1},
    "no grouping": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 24},
    "other rotation and norm": {"rope_theta": 500.0, "rms_norm_eps": 1e-2},
}


def reference(**changes: Any) -> Any:
    """A random transformers model and our copy of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 49, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 48,
    }  # fmt: skip
    config = LlamaConfig(**(sizes | changes))
    theirs: Any = LlamaForCausalLM(config)
    theirs.eval().float()
    with torch.no_grad():
        for parameter in theirs.parameters():  # large enough that positions, norms and heads all matter
            parameter.add_(torch.randn_like(parameter) * 0.3)
    architecture = Architecture.from_config(config.to_dict())
    return theirs, Transformer(architecture, dict(theirs.state_dict()), dtype=torch.float32)


def logits_of(model: Transformer, ids: list[int]) -> torch.Tensor:
    attention = TreeAttention([Tree(((len(ids), ROOT),))], model.device)
    return model.logits(model.forward(torch.tensor(ids), torch.arange(len(ids)), attention))


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_logits_are_those_of_transformers(shape: str) -> None:
    theirs, ours = reference(**SHAPES[shape])
    ids = torch.randint(0, 48, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids).logits
    for row, want in zip(ids.tolist(), expected, strict=True):
        assert (logits_of(ours, row) - want).abs().max() < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_greedy_tokens_of_the_engine_are_those_of_transformers(shape: str, tmp_path: Path) -> None:
    theirs, ours = reference(**SHAPES[shape])
    tiny.write_folder(tmp_path, tiny.random_state())
    engine = Engine(ours, Renderer.load(tmp_path))
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, 48, (n,), generator=generator).tolist() for n in (1, 7, 30)]
    samples = engine.sample([SampleRequest(tuple(p), ((), ()), (0, 1), 20, temperature=0.0) for p in prompts])
    for prompt, (first, second) in zip(prompts, samples, strict=True):
        made = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=48)
        assert list(first.token_ids) == made[0, len(prompt) :].tolist()
        assert first.token_ids == second.token_ids


def test_the_weights_come_back_as_they_went_in() -> None:
    theirs, ours = reference(tie_word_embeddings=False)
    state = ours.state_dict()
    assert set(state) == set(theirs.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": None}, "model_type"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope scaling"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"vocab_size": None}, "size"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said) as error:
        Architecture.from_config(tiny.CONFIG | change)
    assert "\n" not in str(error.value)


def test_a_config_that_lacks_a_size_is_refused_by_its_name() -> None:
    config = {k: v for k, v in tiny.CONFIG.items() if k != "intermediate_size"}
    with pytest.raises(UnsupportedModel, match="intermediate_size"):
        Architecture.from_config(config)


def test_missing_and_misshapen_weights_are_named() -> None:
    architecture, state = Architecture.from_config(tiny.CONFIG), tiny.random_state()
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(ValueError, match=name):
        Transformer(architecture, {k: v for k, v in state.items() if k != name}, dtype=torch.float32)
    with pytest.raises(ValueError, match=f"{name} has shape"):
        Transformer(architecture, state | {name: state[name].t()}, dtype=torch.float32)


@torch.no_grad()
def test_an_unmerged_adapter_computes_what_merged_weights_would() -> None:
    architecture, state = Architecture.from_config(tiny.CONFIG), tiny.random_state()
    model = Transformer(architecture, state, dtype=torch.float32)
    adapter = tiny.random_adapter(architecture)
    for layer in range(architecture.layers):
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
            block = "self_attn" if projection[0] in "qkvo" else "mlp"
            state[f"model.layers.{layer}.{block}.{projection}.weight"] += adapter.delta(layer, projection)
    merged = Transformer(architecture, state, dtype=torch.float32)
    ids = list(range(30))
    attention = TreeAttention([Tree(((30, ROOT),))], model.device)
    unmerged = model.logits(model.forward(torch.tensor(ids), torch.arange(30), attention, adapter.fused()))
    assert (unmerged - logits_of(merged, ids)).abs().max() < 1e-4
    assert (unmerged - logits_of(model, ids)).abs().max() > 0.1, "the adapter of this test does nothing"


@pytest.mark.parametrize("bad", [{"rank": 0}, {"rank": -4}, {"alpha": 0.0}, {"alpha": float("nan")}])
def test_an_adapter_that_adds_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give a"):
        LoRA(**bad)


def test_a_sampler_never_reads_the_adapter_of_another_version() -> None:
    adapter = tiny.random_adapter(Architecture.from_config(tiny.CONFIG))
    before = adapter.frozen(0)[0].out[1].clone()
    with torch.no_grad():
        adapter.b[0, "o_proj"].add_(1.0)
    assert torch.equal(adapter.frozen(0)[0].out[1], before), "the cast copy is made once for each version"
    assert not torch.equal(adapter.frozen(1)[0].out[1], before)


def test_an_adapter_of_another_rank_is_refused() -> None:
    architecture = Architecture.from_config(tiny.CONFIG)
    small = LoraAdapter(LoRA(2), architecture, seed=0, device=torch.device("cpu"), dtype=torch.float32)
    large = tiny.random_adapter(architecture)
    with pytest.raises(ValueError, match="rank"):
        small.load({name: p.detach() for name, p in large.parameters().items()})
    with pytest.raises(ValueError, match="another model"):
        small.load({})
