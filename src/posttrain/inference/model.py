"""The one model code that the engine samples with and the trainer differentiates.

Tokens lie flat, [N] over all sequences, so that every product but attention runs without padding. Attention is a
callable that the caller brings: the engine's reads a cache, the trainer's a tree of prompt and attempts. The residual
stream, norms, rotary positions and attention are computed in float32; the projections in the compute dtype
(bfloat16 or float32). That is what keeps sampler and trainer together (invariant 2): only the projections round, and
both use the same.

Shapes: n tokens, d hidden, h query heads, k key-value heads, e head dimension, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.inference.architecture import Architecture
from posttrain.inference.logprobs import head_logits
from posttrain.inference.lora import LayerLora

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q_nhe, k_nke, v_nke), all float32 -> out_nhe."""


@dataclass(slots=True)
class Layer:
    """Weights of one decoder layer; projections that read the same input are fused row-wise."""

    norm_attention_d: Tensor
    norm_mlp_d: Tensor
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Transformer:
    """A decoder whose weights are plain tensors: frozen under LoRA, trainable when they require gradients."""

    def __init__(
        self, architecture: Architecture, state: Mapping[str, Tensor], *, dtype: torch.dtype, device: str = "cpu"
    ):
        """state: Hugging Face names -> tensors. Raises ValueError naming a missing or misshapen tensor."""
        self.architecture = a = architecture
        self.dtype = dtype
        self.device = torch.device(device)

        def take(name: str, *shape: int, to: torch.dtype = torch.float32) -> Tensor:
            tensor = state.get(name)
            if tensor is None:
                raise ValueError(f"the weights lack {name}: the folder is incomplete; import the model again")
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, config.json says {shape}: import the model again"
                )
            return tensor.to(device=self.device, dtype=to)

        def fuse(*parts: tuple[str, int], columns: int) -> Tensor:
            return torch.cat([take(name, rows, columns, to=dtype) for name, rows in parts])

        q, k, v = a.qkv_sizes
        d, m = a.hidden_size, a.intermediate_size
        self.embed_vd = take("model.embed_tokens.weight", a.vocab_size, d)
        self.head_vd = self.embed_vd if a.tied_head else take("lm_head.weight", a.vocab_size, d)
        self.head_low_vd = self.head_vd.to(dtype) if dtype is torch.bfloat16 else None
        self.norm_d = take("model.norm.weight", d)
        self.layers = []
        for i in range(a.layers):
            at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
            self.layers.append(
                Layer(
                    norm_attention_d=take(f"model.layers.{i}.input_layernorm.weight", d),
                    norm_mlp_d=take(f"model.layers.{i}.post_attention_layernorm.weight", d),
                    qkv=fuse(
                        (f"{at}.q_proj.weight", q), (f"{at}.k_proj.weight", k), (f"{at}.v_proj.weight", v), columns=d
                    ),
                    out=fuse((f"{at}.o_proj.weight", d), columns=q),
                    gate_up=fuse((f"{mlp}.gate_proj.weight", m), (f"{mlp}.up_proj.weight", m), columns=d),
                    down=fuse((f"{mlp}.down_proj.weight", d), columns=m),
                )
            )
        inverse = a.rope_theta ** (
            -torch.arange(0, a.head_dim, 2, device=self.device, dtype=torch.float32) / a.head_dim
        )
        self._rope_e2 = inverse

    def parameters(self) -> dict[str, Tensor]:
        """Every weight by a stable name; fused projections stay fused."""
        named = {"embed": self.embed_vd, "norm": self.norm_d}
        if not self.architecture.tied_head:
            named["head"] = self.head_vd
        for i, layer in enumerate(self.layers):
            for name in Layer.__slots__:
                named[f"layers.{i}.{name}"] = getattr(layer, name)
        return named

    def state_dict(self) -> dict[str, Tensor]:
        """Float32 copies under Hugging Face names, fused projections split again."""
        a = self.architecture
        out = {"model.embed_tokens.weight": self.embed_vd, "model.norm.weight": self.norm_d}
        if not a.tied_head:
            out["lm_head.weight"] = self.head_vd
        for i, layer in enumerate(self.layers):
            at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
            q, k, v = layer.qkv.split(a.qkv_sizes)
            gate, up = layer.gate_up.chunk(2)
            out |= {
                f"model.layers.{i}.input_layernorm.weight": layer.norm_attention_d,
                f"model.layers.{i}.post_attention_layernorm.weight": layer.norm_mlp_d,
                f"{at}.q_proj.weight": q,
                f"{at}.k_proj.weight": k,
                f"{at}.v_proj.weight": v,
                f"{at}.o_proj.weight": layer.out,
                f"{mlp}.gate_proj.weight": gate,
                f"{mlp}.up_proj.weight": up,
                f"{mlp}.down_proj.weight": layer.down,
            }
        return {name: tensor.detach().float().cpu().clone() for name, tensor in out.items()}

    def forward(
        self, ids_n: Tensor, positions_n: Tensor, attend: Attend, lora: list[LayerLora] | None = None
    ) -> Tensor:
        """Hidden states after the last norm, [N, d] float32. lora: one entry a layer, None for the base model."""
        a = self.architecture
        cos_n1e, sin_n1e = self._rotations(positions_n)
        x_nd = F.embedding(ids_n, self.embed_vd)
        for i, layer in enumerate(self.layers):
            adapter = lora[i] if lora is not None else None
            h = F.rms_norm(x_nd, (a.hidden_size,), layer.norm_attention_d, a.norm_eps).to(self.dtype)
            qkv = _project(h, layer.qkv, adapter and adapter.qkv).float()
            heads = qkv.unflatten(-1, (a.heads + 2 * a.kv_heads, a.head_dim))
            turned, v_nke = heads.split((a.heads + a.kv_heads, a.kv_heads), dim=1)
            q_nhe, k_nke = _rotate(turned, cos_n1e, sin_n1e).split((a.heads, a.kv_heads), dim=1)
            o_nhe = attend(i, q_nhe, k_nke, v_nke)
            x_nd = x_nd + _project(o_nhe.flatten(-2).to(self.dtype), layer.out, adapter and adapter.out)
            h = F.rms_norm(x_nd, (a.hidden_size,), layer.norm_mlp_d, a.norm_eps).to(self.dtype)
            gate, up = _project(h, layer.gate_up, adapter and adapter.gate_up).chunk(2, dim=-1)
            x_nd = x_nd + _project(F.silu(gate) * up, layer.down, adapter and adapter.down)
        return F.rms_norm(x_nd, (a.hidden_size,), self.norm_d, a.norm_eps)

    def logits(self, hidden_nd: Tensor) -> Tensor:
        """[N, v] float32, precise where the probability is (see `logprobs.head_logits`)."""
        return head_logits(hidden_nd, self.head_vd, self.head_low_vd)

    def _rotations(self, positions_n: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions_n.float()[:, None] * self._rope_e2
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return angles.cos(), angles.sin()


def _project(x: Tensor, weight: Tensor, adapter: tuple[Tensor, Tensor] | None) -> Tensor:
    y = F.linear(x, weight)
    if adapter is None:
        return y
    down, up = adapter
    return torch.addmm(y, F.linear(x, down), up.t())


def _rotate(x_nhe: Tensor, cos_n1e: Tensor, sin_n1e: Tensor) -> Tensor:
    first, second = x_nhe.chunk(2, dim=-1)
    return torch.addcmul(x_nhe * cos_n1e, torch.cat((-second, first), dim=-1), sin_n1e)
