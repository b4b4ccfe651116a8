"""Gradients and updates: `forward_backward` adds up the gradient of one batch, `optim_step` applies it.

Invariants: the sampler's log-probabilities are compared with the trainer's on every batch of sampled tokens, and a gap
beyond `MISMATCH_MEAN` stops the run before it trains on them (a stale adapter, a wrong temperature, a shifted mask). A
gradient or loss that is not finite is never applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from posttrain.inference.attention import TreeAttention
from posttrain.inference.logprobs import token_logprobs
from posttrain.inference.lora import LayerLora
from posttrain.inference.model import Transformer
from posttrain.training.packing import Family, MicroBatch, pack

MISMATCH_MEAN = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Mean |log-probability gap| per sampled token beyond which sampler and trainer are not the same policy."""


class PolicyMismatch(RuntimeError):
    """The tokens were sampled from another policy than the one about to be trained."""


class NonFiniteLoss(RuntimeError):
    """A loss or gradient that is NaN or infinite; nothing was applied."""


class TokenLoss(Protocol):
    def token_loss(self, logprob_m: Tensor, sampled_logprob_m: Tensor, advantage_m: Tensor) -> Tensor: ...


@dataclass(slots=True)
class Gradient:
    """What one `forward_backward` saw. tokens: that carried loss; computed_tokens: that ran through the model. nll,
    entropy: mean per loss token, nats. logprob_gap_max, _mean: against the sampler (0 where nothing was sampled)."""

    loss: float = 0.0
    tokens: int = 0
    computed_tokens: int = 0
    nll: float = 0.0
    entropy: float = 0.0
    logprob_gap_max: float = 0.0
    logprob_gap_mean: float = 0.0


def check_step(learning_rate: float, max_grad_norm: float) -> None:
    """Raises ValueError for settings that no update can be made with."""
    if not (math.isfinite(learning_rate) and learning_rate >= 0):
        raise ValueError(f"learning rate {learning_rate}: give a number >= 0")
    if not (math.isfinite(max_grad_norm) and max_grad_norm > 0):
        raise ValueError(f"max_grad_norm {max_grad_norm}: give a number > 0")


class Trainer:
    """Trains `parameters` of `model` (an adapter's, or all of them) with AdamW (arXiv 1711.05101)."""

    def __init__(
        self,
        model: Transformer,
        parameters: Mapping[str, Tensor],
        lora: Callable[[], list[LayerLora] | None] = lambda: None,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
    ):
        self.model, self.parameters, self.lora = model, dict(parameters), lora
        if not self.parameters:
            raise ValueError("there is nothing to train: give an adapter or trainable weights")
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=0.0, betas=betas, weight_decay=0.0, foreach=True
        )

    def forward_backward(
        self, families: Sequence[Family], loss: TokenLoss, *, temperature: float = 1.0, micro_batch_tokens: int = 1024
    ) -> Gradient:
        """Adds the gradient of sum(weight * token_loss) to the parameters' `.grad`. temperature: that of sampling.

        Where it raises (`PolicyMismatch`, `NonFiniteLoss`), all gradient that was added up is forgotten: half a batch
        must not leak into the next update.
        """
        try:
            return self._accumulate(families, loss, temperature, micro_batch_tokens)
        except BaseException:  # also a Ctrl-C: half a gradient must not reach the next update
            self.discard_gradient()
            raise

    def discard_gradient(self) -> None:
        """Drops what `forward_backward` added up."""
        self.optimizer.zero_grad(set_to_none=True)

    def _accumulate(
        self, families: Sequence[Family], loss: TokenLoss, temperature: float, micro_batch_tokens: int
    ) -> Gradient:
        seen = Gradient()
        gap_sum, gap_tokens = 0.0, 0
        for micro in pack(families, micro_batch_tokens, self.model.device):
            logprob_m, entropy_m = self._logprobs(micro, temperature)
            gap = (logprob_m.detach() - micro.sampled_logprob_m).abs()
            sampled = micro.advantage_m != 0
            if sampled.any():
                seen.logprob_gap_max = max(seen.logprob_gap_max, float(gap[sampled].max()))
                gap_sum += float(gap[sampled].sum())
                gap_tokens += int(sampled.sum())
                self._same_policy(gap_sum / gap_tokens, gap_tokens)
            total = (micro.weight_m * loss.token_loss(logprob_m, micro.sampled_logprob_m, micro.advantage_m)).sum()
            if not torch.isfinite(total):
                raise NonFiniteLoss(
                    f"the loss is {float(total.detach())} in a batch of {micro.domains}; no update was applied"
                )
            total.backward()  # type: ignore[no-untyped-call,unused-ignore]
            seen.loss += float(total.detach())
            seen.tokens += len(logprob_m)
            seen.computed_tokens += len(micro.ids_n)
            seen.nll -= float(logprob_m.detach().sum())
            seen.entropy += float(entropy_m.sum())
        seen.nll /= max(seen.tokens, 1)
        seen.entropy /= max(seen.tokens, 1)
        seen.logprob_gap_mean = gap_sum / max(gap_tokens, 1)
        return seen

    def optim_step(self, learning_rate: float, *, max_grad_norm: float = 1.0) -> float:
        """Clips the accumulated gradient to `max_grad_norm` (L2), applies it, clears it. Returns the norm before
        clipping."""
        check_step(learning_rate, max_grad_norm)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), max_grad_norm, foreach=True))
        if not math.isfinite(norm):
            self.discard_gradient()
            raise NonFiniteLoss(f"the gradient norm is {norm}; the update was not applied")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.discard_gradient()
        return norm

    def _logprobs(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        attention = TreeAttention(micro.trees, self.model.device)
        hidden_nd = self.model.forward(micro.ids_n, micro.positions_n, attention, self.lora())
        return token_logprobs(
            hidden_nd[micro.source_m], self.model.head_vd, micro.targets_m, temperature, self.model.head_low_vd
        )

    def _same_policy(self, gap_mean: float, tokens: int) -> None:
        limit = MISMATCH_MEAN[self.model.dtype]
        if tokens >= 16 and gap_mean > limit:
            raise PolicyMismatch(
                f"sampler and trainer differ by {gap_mean:.3g} nats a token over {tokens} tokens (limit {limit:g}): "
                "the samples are from another policy version or another temperature; nothing was trained on them"
            )

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer moments as flat tensors, for a checkpoint."""
        out = {f"parameter.{name}": p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            moments = self.optimizer.state.get(p, {})
            for key in ("exp_avg", "exp_avg_sq", "step"):
                if key in moments:
                    out[f"{key}.{name}"] = moments[key].detach()
        return out

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave. Raises ValueError where it belongs to another model or adapter."""
        for name, p in self.parameters.items():
            saved = state.get(f"parameter.{name}")
            if saved is None or saved.shape != p.shape:
                raise ValueError(
                    f"the checkpoint does not fit this model and adapter: {name} is missing or has another shape"
                )
        with torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(state[f"parameter.{name}"])
                self.optimizer.state[p].clear()
                if f"exp_avg.{name}" in state:
                    self.optimizer.state[p] = {
                        "step": state[f"step.{name}"].clone(),
                        "exp_avg": state[f"exp_avg.{name}"].to(p.device).clone(),
                        "exp_avg_sq": state[f"exp_avg_sq.{name}"].to(p.device).clone(),
                    }
