"""A tiny llama as a GGUF file, written from the format's documentation: the inverse of what the tests import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from posttrain.inference.stop_strings import _byte_level

HEADS, KV_HEADS, HIDDEN, INNER, LAYERS = 4, 2, 64, 96, 2
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = SPECIAL + list(_byte_level()) + [m.replace(" ", "") for m in MERGES]
Kind = gguf.GGMLQuantizationType


def tiny_model(layers: int = LAYERS, hidden: int = HIDDEN, tied: bool = True) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=hidden,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    made: Any = LlamaForCausalLM(config)
    return made.eval()


def llama_cpp_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp's converter orders the rows of q and k: the two halves of each head are interleaved."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path, model: Any, kind: Kind = Kind.F32, change: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    """The model as llama.cpp would store it: the inverse of what is tested, written from the format's documentation."""
    writer = gguf.GGUFWriter(path, "llama")
    c = model.config
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if t in SPECIAL else 1 for t in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
    if change is not None:
        change(writer)
    for name, tensor in gguf_tensors(model).items():
        data = tensor.detach().numpy()
        stored = kind if data.ndim == 2 else Kind.F32
        writer.add_tensor(name, gguf.quants.quantize(data, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(model: Any) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    out = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    if not model.config.tie_word_embeddings:
        out["output.weight"] = state["lm_head.weight"]
    for i, layer in enumerate(model.model.layers):
        a, m = layer.self_attn, layer.mlp
        parts = {
            "attn_norm": layer.input_layernorm.weight,
            "attn_q": llama_cpp_rows(a.q_proj.weight, HEADS),
            "attn_k": llama_cpp_rows(a.k_proj.weight, KV_HEADS),
            "attn_v": a.v_proj.weight,
            "attn_output": a.o_proj.weight,
            "ffn_norm": layer.post_attention_layernorm.weight,
            "ffn_gate": m.gate_proj.weight,
            "ffn_up": m.up_proj.weight,
            "ffn_down": m.down_proj.weight,
        }
        out |= {f"blk.{i}.{k}.weight": v for k, v in parts.items()}
    return out


_IMPORT = """
import sys
from pathlib import Path
from posttrain.inference.sources import import_model
worked = set()
try:
    made = import_model(sys.argv[1], cache=Path(sys.argv[2]), progress=lambda what, share: worked.add(what.split()[0]))
    print(made.checksum, "converting" in worked)
except ValueError as error:
    print("ERROR", error)
"""


def python(code: str, *args: object, **environment: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | environment
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


class Kit:
    """What the tests of the importer share."""

    HEADS, HIDDEN, TOKENS = HEADS, HIDDEN, TOKENS
    IMPORT = _IMPORT
    tiny_model = staticmethod(tiny_model)
    llama_cpp_rows = staticmethod(llama_cpp_rows)
    write_gguf = staticmethod(write_gguf)
    python = staticmethod(python)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture(scope="session")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 MB: large enough to be killed, or to run out of disk, in the middle."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "big.gguf", tiny_model(layers=16, hidden=512))
