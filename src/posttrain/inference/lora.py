"""Low-rank adapters (LoRA, arXiv 2106.09685): y = W x + (alpha / rank) B A x on every projection of every layer.

Sampler and trainer apply the adapter the same way, unmerged: a bfloat16 weight can not hold most of a small update, so
a merged copy would sample from another policy than the one that is trained. Invariant: `version` counts the updates;
a cast copy for sampling is tied to the version that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.inference.architecture import Architecture

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True, slots=True)
class LoRA:
    """What to add: rank of each adapter and its scale alpha / rank."""

    rank: int = 16
    alpha: float = 32.0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"LoRA rank {self.rank}: give a whole number >= 1")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"LoRA alpha {self.alpha}: give a number > 0")


class LayerLora(NamedTuple):
    """For each fused projection (A [parts * rank, in], B [out, parts * rank]) in the compute dtype, scale folded into
    B."""

    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    gate_up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


class LoraAdapter:
    """The trainable float32 matrices: `a[layer, projection]` [rank, in], `b[...]` [out, rank]; B starts at zero."""

    def __init__(self, spec: LoRA, architecture: Architecture, *, seed: int, device: torch.device, dtype: torch.dtype):
        self.spec = spec
        self.layers = architecture.layers
        self.dtype = dtype
        self.scale = spec.alpha / spec.rank
        self.a: dict[tuple[int, str], Tensor] = {}
        self.b: dict[tuple[int, str], Tensor] = {}
        generator = torch.Generator().manual_seed(seed)
        for i in range(architecture.layers):
            for name, (rows, columns) in projection_shapes(architecture).items():
                bound = 1 / math.sqrt(columns)  # kaiming_uniform(a=sqrt 5), as in the reference implementation
                a = torch.empty(spec.rank, columns).uniform_(-bound, bound, generator=generator)
                self.a[i, name] = a.to(device).requires_grad_()
                self.b[i, name] = torch.zeros(rows, spec.rank, device=device, requires_grad=True)
        self._frozen: tuple[int, list[LayerLora]] | None = None

    def parameters(self) -> dict[str, Tensor]:
        """By PEFT's names: `base_model.model.model.layers.I.BLOCK.PROJECTION.lora_A.weight`."""
        return dict(self._named())

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for (i, name), a in self.a.items():
            block = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            prefix = f"base_model.model.model.layers.{i}.{block}.{name}"
            yield f"{prefix}.lora_A.weight", a
            yield f"{prefix}.lora_B.weight", self.b[i, name]

    def fused(self) -> list[LayerLora]:
        """Differentiable cast matrices for one forward pass of the trainer."""
        return [LayerLora(*(self._fuse(i, parts) for parts in _FUSED.values())) for i in range(self.layers)]

    def frozen(self, version: int) -> list[LayerLora]:
        """The same matrices without gradient, cast once for each policy version: what the sampler reads."""
        if self._frozen is None or self._frozen[0] != version:
            with torch.no_grad():
                self._frozen = (version, self.fused())
        return self._frozen[1]

    def invalidate(self) -> None:
        """Forgets the cast copy, for when the matrices were changed other than by an update (a loaded checkpoint)."""
        self._frozen = None

    def copy(self, dtype: torch.dtype) -> LoraAdapter:
        """The same matrices, computed in `dtype`; shares no memory with this adapter."""
        twin = object.__new__(LoraAdapter)
        twin.spec, twin.layers, twin.dtype, twin.scale = self.spec, self.layers, dtype, self.scale
        twin.a = {key: a.detach().cpu().clone() for key, a in self.a.items()}
        twin.b = {key: b.detach().cpu().clone() for key, b in self.b.items()}
        twin._frozen = None
        return twin

    def delta(self, layer: int, projection: str) -> Tensor:
        """What the adapter adds to a weight: (alpha / rank) B A, [out, in] float32."""
        return self.scale * (self.b[layer, projection] @ self.a[layer, projection])

    def load(self, state: dict[str, Tensor]) -> None:
        """Takes over matrices under PEFT's names. Raises ValueError when they belong to another model or rank."""
        mine = self.parameters()
        if set(state) != set(mine):
            odd = sorted(set(state) ^ set(mine))
            raise ValueError(
                f"the adapter is for another model: {len(odd)} matrices do not match, the first is {odd[0]}"
            )
        with torch.no_grad():
            for name, tensor in state.items():
                if tensor.shape != mine[name].shape:
                    raise ValueError(
                        f"{name} has shape {tuple(tensor.shape)}, this model and rank need {tuple(mine[name].shape)}"
                    )
                mine[name].copy_(tensor)
        self.invalidate()

    def _fuse(self, layer: int, parts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        down = torch.cat([self.a[layer, p] for p in parts]) if len(parts) > 1 else self.a[layer, parts[0]]
        ups = [self.b[layer, p] for p in parts]
        up = torch.block_diag(*ups) if len(ups) > 1 else ups[0]
        return down.to(self.dtype), (up * self.scale).to(self.dtype)


def projection_shapes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """[out, in] of each projection."""
    q, k, v = architecture.qkv_sizes
    d, m = architecture.hidden_size, architecture.intermediate_size
    shapes = ((q, d), (k, d), (v, d), (d, q), (m, d), (m, d), (d, m))
    return dict(zip(PROJECTIONS, shapes, strict=True))
