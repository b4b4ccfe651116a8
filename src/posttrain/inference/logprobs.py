"""Log-probabilities of chosen tokens without keeping the logits.

Logits of a 49k vocabulary for 1,000 tokens are 200 MB, and as much again for their gradient. Here they exist for
`CHUNK_TOKENS` tokens at a time and are computed a second time in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_TOKENS = 256  # 50 MB of float32 logits at a 49k vocabulary


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_md: Tensor, head_vd: Tensor, targets_m: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = [], [], []
        for h, targets in zip(hidden_md.split(CHUNK_TOKENS), targets_m.split(CHUNK_TOKENS), strict=True):
            logits = F.linear(h, head_vd).div_(temperature)
            normaliser = logits.logsumexp(-1)
            chosen = logits.gather(1, targets[:, None])[:, 0]
            logprobs.append(chosen - normaliser)
            probabilities = (logits - normaliser[:, None]).exp_()
            entropies.append(normaliser - probabilities.mul_(logits).sum(-1))
            normalisers.append(normaliser)
        ctx.save_for_backward(hidden_md, head_vd, targets_m, torch.cat(normalisers))
        ctx.temperature = temperature
        entropy_m = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_m)
        return torch.cat(logprobs), entropy_m

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_m = grads[0]
        hidden_md, head_vd, targets_m, normaliser_m = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden_md) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head_vd) if ctx.needs_input_grad[1] else None
        for start in range(0, len(targets_m), CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            h, targets = hidden_md[rows], targets_m[rows]
            # d logprob / d logits = (onehot - softmax) / temperature
            logits = F.linear(h, head_vd).div_(ctx.temperature)
            step = logits.sub_(normaliser_m[rows, None]).exp_().neg_()
            step.scatter_add_(1, targets[:, None], torch.ones_like(step[:, :1]))
            step.mul_(grad_m[rows, None] / ctx.temperature)
            if grad_hidden is not None:
                grad_hidden[rows] = step @ head_vd
            if grad_head is not None:
                grad_head.addmm_(step.t(), h)
        return grad_hidden, grad_head, None, None


def token_logprobs(
    hidden_md: Tensor, head_vd: Tensor, targets_m: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(log p(target), entropy), each [M] in nats, of softmax(hidden head^T / temperature); the entropy carries no
    gradient.

    hidden_md: [M, d] float32; head_vd: [v, d] float32; targets_m: [M] token ids; temperature > 0.
    """
    if targets_m.numel() == 0:
        empty = hidden_md.sum(-1)
        return empty, empty.detach()
    out: tuple[Tensor, Tensor] = _TokenLogprobs.apply(hidden_md, head_vd, targets_m, temperature)  # type: ignore[no-untyped-call]
    return out
