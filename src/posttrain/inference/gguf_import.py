"""Turns a GGUF file of the llama architecture into a Hugging Face folder: config, tokenizer and safetensors.

Invariants: the file is judged whole (architecture, every tensor's name and shape, tokenizer) before a byte is written;
the rows of q and k are put back into the order that Hugging Face's rotary embedding expects; memory stays at a few
chunks.
Bound: one pass over the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.import_gguf_file import GgufFile
from posttrain.inference.import_llama import judged, llama_tensors
from posttrain.inference.import_safetensors import BYTES, Planned, write_safetensors
from posttrain.inference.import_tokenizer import build_tokenizer

TORCH_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufPlan:
    """What an import will write: read from the metadata, before work starts.

    weight_bytes: size of model.safetensors.
    """

    config: dict[str, Any]
    names: dict[str, tuple[str, tuple[int, ...]]]  # GGUF name -> (Hugging Face name, shape)
    dtype: str
    parameter_count: int
    weight_bytes: int


def plan_gguf(file: GgufFile) -> GgufPlan:
    """Judges the file. Raises ModelSourceError where it is not a whole llama that this code converts exactly."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelSourceError(
            f"{file.name}: architecture {architecture!r:.40} is not supported (only 'llama'); use a "
            "llama model such as smollm2-135m"
        )
    config = _config(file)
    names = _expected(config, file.name)
    missing = sorted(set(names) - set(file.tensors))
    strange = sorted(set(file.tensors) - set(names))
    if missing:
        raise ModelSourceError(
            f"{file.name}: {len(missing)} tensors are missing, such as {missing[0]}; download the file again"
        )
    if strange:
        raise ModelSourceError(
            f"{file.name}: {len(strange)} tensors are not of a plain llama, such as "
            f"{strange[0]!r:.80}; use another model"
        )
    for name, (_, shape) in names.items():
        info = file.tensors[name]
        if info.shape != shape:
            raise ModelSourceError(
                f"{file.name}: tensor {name} has shape {info.shape}, the metadata says {shape}; use another file"
            )
        if info.kind not in _KINDS:
            raise ModelSourceError(f"{file.name}: tensor {name} is {info.kind}; supported are {', '.join(_KINDS)}")
    dtype = _storage_dtype({file.tensors[n].kind for n, (_, shape) in names.items() if len(shape) == 2})
    config["dtype"] = TORCH_DTYPES[dtype]
    count = sum(math.prod(shape) for _, shape in names.values())
    return GgufPlan(config, names, dtype, count, count * BYTES[dtype])


def write_gguf(file: GgufFile, plan: GgufPlan, folder: Path, progress: Callable[[float], None]) -> dict[str, str]:
    """Writes the model into `folder` (exists, empty).

    Returns the SHA-256 of the weight files by name. Errors: OSError.
    """
    tokenizer, tokenizer_config, ids = build_tokenizer(file.metadata, file.name)
    if tokenizer.get_vocab_size() > plan.config["vocab_size"]:
        raise ModelSourceError(
            f"{file.name}: {tokenizer.get_vocab_size()} tokens but {plan.config['vocab_size']} "
            "embeddings; use another file"
        )
    config = {**plan.config, "bos_token_id": ids["bos_token_id"], "pad_token_id": ids["pad_token_id"]}
    config["eos_token_id"] = ids["eos_token_id"][0] if ids["eos_token_id"] else None
    generation = {
        "bos_token_id": ids["bos_token_id"],
        "eos_token_id": ids["eos_token_id"],
        "pad_token_id": ids["pad_token_id"],
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    for name, value in (("config", config), ("tokenizer_config", tokenizer_config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    planned = []
    for source, (target, shape) in plan.names.items():
        part = source.split(".")[2] if source.startswith("blk.") else ""
        order = rope_order(shape[0], heads[part]) if part in heads else None
        planned.append(Planned(target, shape, lambda s=source, o=order: file.rows(s, o)))  # type: ignore[misc]
    return {"model.safetensors": write_safetensors(folder / "model.safetensors", planned, plan.dtype, progress)}


def rope_order(rows: int, heads: int) -> NDArray[np.int64]:
    """[rows] for each row of a Hugging Face q or k matrix, its row in the GGUF.

    llama.cpp rotates neighbouring pairs (2i, 2i+1) of a head, Hugging Face the pair (i, i + d/2): within each head,
    GGUF row 2i + j is Hugging Face row i + j d/2.
    """
    return np.arange(rows, dtype=np.int64).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def _storage_dtype(kinds: set[str]) -> str:
    """How the weights are stored: float32 and float16 sources exactly, quantised and bfloat16 ones in bfloat16.

    Rounding what 4 to 8 bits describe to bfloat16 costs nothing that can be seen (SmolLM2-135M Q4_1, 1,500 tokens of
    prose: mean KL 6e-5, mean log-probability -3.7977 against -3.7974), and halves disk, memory and the time to load.
    """
    if "F32" in kinds:
        return "F32"
    return "F16" if kinds == {"F16"} else "BF16"


def _number(file: GgufFile, key: str, default: float | None = None, *, low: float = 1, high: float = 1 << 24) -> Any:
    value = file.metadata.get(f"llama.{key}", default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ModelSourceError(
            f"{file.name}: metadata llama.{key} is {value!r:.40}, expected {low} to {high}; use another file"
        )
    return value


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for 9.999999747378752e-06, as the model was published."""
    return float(str(np.float32(value)))


def _config(file: GgufFile) -> dict[str, Any]:
    """The contents of config.json. Refuses every variant that would need code beyond a plain llama."""
    hidden, heads = int(_number(file, "embedding_length")), int(_number(file, "attention.head_count"))
    head_dim = int(_number(file, "attention.key_length", hidden // max(heads, 1)))
    kv_heads = int(_number(file, "attention.head_count_kv", heads))
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    reasons = {
        f"rope scaling {scaling!r:.40}": scaling != "none" or "rope_freqs.weight" in file.tensors,
        "a mixture of experts": bool(file.metadata.get("llama.expert_count", 0)),
        "a partial rotary embedding": int(_number(file, "rope.dimension_count", head_dim)) != head_dim,
        "a value size of its own": int(_number(file, "attention.value_length", head_dim)) != head_dim,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ModelSourceError(
                f"{file.name}: {reason} is not supported in a GGUF; import the model's Hugging Face folder"
            )
    if head_dim % 2 or heads % kv_heads:
        raise ModelSourceError(
            f"{file.name}: {heads} heads, {kv_heads} key/value heads of size {head_dim} do not fit; use another file"
        )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelSourceError(f"{file.name}: tensor token_embd.weight is missing; download the file again")
    theta = _shortest(_number(file, "rope.freq_base", 10000.0, high=1e12))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": int(_number(file, "feed_forward_length")),
        "num_hidden_layers": int(_number(file, "block_count", high=10_000)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": int(_number(file, "context_length", high=1 << 30)),
        "rms_norm_eps": _shortest(_number(file, "attention.layer_norm_rms_epsilon", low=0, high=1)),
        "rope_theta": theta,  # where transformers 4 looks; 5 reads rope_parameters
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _expected(config: dict[str, Any], name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF name -> (Hugging Face name, shape) of every tensor."""
    shapes = llama_tensors(judged(config, Path(name)))
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for i in range(config["num_hidden_layers"]):
        names |= {f"blk.{i}.{theirs}": f"model.layers.{i}.{ours}" for theirs, ours in _LAYER.items()}
    targets = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in names.items()}
    return {theirs: (ours, shapes[ours]) for theirs, ours in targets.items() if ours in shapes}
