"""What a Llama-shaped model is made of: its hyper-parameters, read from a Hugging Face `config.json`.

What the shared model code can not compute exactly is refused here by name, before any weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class UnsupportedModel(ValueError):
    """The folder holds a model that the shared model code would compute wrongly."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a decoder with grouped-query attention, rotary positions, RMS norms and a SwiGLU feed-forward."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    norm_eps: float
    tied_head: bool
    max_position: int

    @property
    def query_groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        kv = self.kv_heads * self.head_dim
        return self.heads * self.head_dim, kv, kv

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """From a Hugging Face `config.json` of `model_type` llama. Raises `UnsupportedModel` naming what is not
        supported."""
        kind = config.get("model_type")
        if kind != "llama":
            raise UnsupportedModel(
                f"model_type {kind!r} is not supported yet: posttrain runs 'llama' models (SmolLM2, Llama 2, TinyLlama)"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise UnsupportedModel(
                f"rope scaling {rope!r} is not supported yet: choose a model with plain rotary positions"
            )
        for flag in ("attention_bias", "mlp_bias"):
            if config.get(flag):
                raise UnsupportedModel(f"{flag}=true is not supported yet")
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"hidden_act {config['hidden_act']!r} is not supported: only 'silu'")
        if config.get("quantization_config"):
            raise UnsupportedModel(
                "a quantised folder can not be trained: import the unquantised model, or its GGUF file"
            )
        try:
            heads = int(config["num_attention_heads"])
            made = cls(
                vocab_size=int(config["vocab_size"]),
                hidden_size=int(config["hidden_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
                intermediate_size=int(config["intermediate_size"]),
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tied_head=bool(config.get("tie_word_embeddings", False)),
                max_position=int(config.get("max_position_embeddings", 2048)),
            )
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise UnsupportedModel(f"config.json holds a size that is not a number > 0 ({error})") from None
        except KeyError as missing:
            raise UnsupportedModel(f"config.json has no {missing}: not a complete Llama configuration") from None
        if made.heads % made.kv_heads:
            raise UnsupportedModel(f"{made.heads} query heads do not divide over {made.kv_heads} key-value heads")
        if made.head_dim % 2:
            raise UnsupportedModel(f"head_dim {made.head_dim} is odd: rotary positions turn pairs")
        return made
