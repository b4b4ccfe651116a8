"""The head: logits of a few tokens, and log-probabilities of chosen tokens without keeping the logits.

Logits of a 49k vocabulary for 1,000 tokens are 200 MB, and as much again for their gradient. Here they exist for
`CHUNK_TOKENS` tokens at a time and are computed a second time in the backward pass.

A logit of 20 has steps of 0.125 in bfloat16, far too coarse for a log-probability, and a float32 head takes a third of
all decoding. So in bfloat16 the head is computed twice: all logits in bfloat16, then the `EXACT_TOP` largest of each
row again in float32, which hold nearly all of the probability. Sampler and trainer use this same function.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_TOKENS = 64  # 12 MB of float32 logits at a 49k vocabulary: larger blocks are given back to the system each time
EXACT_TOP = 64


def head_logits(hidden_md: Tensor, head_vd: Tensor, low_vd: Tensor | None = None) -> Tensor:
    """[M, v] float32. low_vd: the head in bfloat16; with it only the `EXACT_TOP` largest logits of a row are exact, the
    others are rounded to bfloat16."""
    if low_vd is None:
        return F.linear(hidden_md, head_vd)
    logits = F.linear(hidden_md.to(low_vd.dtype), low_vd).float()
    top = logits.topk(min(EXACT_TOP, logits.shape[1]), dim=-1).indices
    exact = torch.bmm(head_vd[top], hidden_md[:, :, None])[:, :, 0]
    return logits.scatter_(1, top, exact)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_md: Tensor, head_vd: Tensor, targets_m: Tensor, temperature: float, low_vd: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = [], [], []
        for h, targets in zip(hidden_md.split(CHUNK_TOKENS), targets_m.split(CHUNK_TOKENS), strict=True):
            logits = head_logits(h, head_vd, low_vd).div_(temperature)
            all_mv = logits.log_softmax(-1)
            chosen = all_mv.gather(1, targets[:, None])[:, 0]
            logprobs.append(chosen)
            # log_softmax + a difference: torch's logsumexp is ten times slower on a CPU
            normalisers.append(logits.gather(1, targets[:, None])[:, 0] - chosen)
            probabilities = torch.exp(all_mv, out=logits)
            entropies.append(-torch.bmm(probabilities[:, None], all_mv[:, :, None])[:, 0, 0])
        ctx.save_for_backward(hidden_md, head_vd, targets_m, torch.cat(normalisers))
        ctx.temperature, ctx.low_vd = temperature, low_vd
        entropy_m = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_m)
        return torch.cat(logprobs), entropy_m

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_m = grads[0]
        hidden_md, head_vd, targets_m, normaliser_m = ctx.saved_tensors
        low_vd = ctx.low_vd
        grad_hidden = torch.empty_like(hidden_md) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head_vd) if ctx.needs_input_grad[1] else None
        for start in range(0, len(targets_m), CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            h, targets = hidden_md[rows], targets_m[rows]
            # d logprob / d logits = (onehot - softmax) / temperature
            logits = head_logits(h, head_vd, low_vd).div_(ctx.temperature)
            step = logits.sub_(normaliser_m[rows, None]).exp_().neg_()
            step.scatter_add_(1, targets[:, None], torch.ones_like(step[:, :1]))
            step.mul_(grad_m[rows, None] / ctx.temperature)
            if grad_hidden is not None:
                grad_hidden[rows] = step @ head_vd if low_vd is None else (step.to(low_vd.dtype) @ low_vd).float()
            if grad_head is not None:
                grad_head.addmm_(step.t(), h)
        return grad_hidden, grad_head, None, None, None


def token_logprobs(
    hidden_md: Tensor, head_vd: Tensor, targets_m: Tensor, temperature: float = 1.0, low_vd: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(log p(target), entropy), each [M] in nats, of softmax(hidden head^T / temperature); the entropy has no gradient.

    hidden_md: [M, d] float32; head_vd: [v, d] float32; targets_m: [M] token ids; temperature > 0; low_vd: see
    `head_logits`.
    """
    if targets_m.numel() == 0:
        empty = hidden_md.sum(-1)
        return empty, empty.detach()
    out: tuple[Tensor, Tensor] = _TokenLogprobs.apply(hidden_md, head_vd, targets_m, temperature, low_vd)  # type: ignore[no-untyped-call]
    return out
