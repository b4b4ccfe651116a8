"""Which tensors a llama folder must hold: judged at import, so that a wrong folder is refused before a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.inference.architecture import Architecture, UnsupportedModel
from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.import_safetensors import TensorSpan


def judged(config: dict[str, Any], path: Path) -> Architecture:
    """The architecture of a config.json.

    Raises ModelSourceError, with the path, where the shared model code can not run it.
    """
    try:
        return Architecture.from_config(config)
    except UnsupportedModel as error:
        raise ModelSourceError(f"{path}: {error}") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ModelSourceError(
            f"{path}: config.json is damaged ({str(error)[:80]}); download the folder again"
        ) from None


def llama_tensors(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every weight, in the order of the layers."""
    a = architecture
    q, k, v = a.qkv_sizes
    d, m = a.hidden_size, a.intermediate_size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (d,),
        "self_attn.q_proj": (q, d),
        "self_attn.k_proj": (k, d),
        "self_attn.v_proj": (v, d),
        "self_attn.o_proj": (d, q),
        "post_attention_layernorm": (d,),
        "mlp.gate_proj": (m, d),
        "mlp.up_proj": (m, d),
        "mlp.down_proj": (d, m),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (a.vocab_size, d)}
    for i in range(a.layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (d,)
    if not a.tied_head:
        shapes["lm_head.weight"] = (a.vocab_size, d)
    return shapes


def require_tensors(architecture: Architecture, spans: list[TensorSpan], path: Path) -> None:
    """Raises ModelSourceError where a weight is missing or misshapen."""
    found = {span.name: span.shape for span in spans}
    for name, shape in llama_tensors(architecture).items():
        if name not in found:
            raise ModelSourceError(f"{path}: the weights lack {name}; download the folder again")
        if found[name] != shape:
            raise ModelSourceError(
                f"{path}: {name} has shape {found[name]}, config.json says {shape}; download the folder again"
            )
