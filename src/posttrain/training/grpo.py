"""GRPO (arXiv 2402.03300), as the quickstart uses it.

Advantage: A_i = (r_i - mean(r)) / (std(r) + 1e-4) over the scored attempts of a group, std unbiased (ddof = 1), the
convention of TRL. Loss: -(1 / N) sum_t min(rho_t A, clip(rho_t, 1 - eps, 1 + eps) A), rho_t = exp(log pi - log mu)
against the sampler's log-probability, with a *constant* N (Dr. GRPO's aggregation, arXiv 2503.20783): with the
surviving tokens as N, a single surviving group would take a full-size step. A group without variance has no gradient
and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.records import Batch, Group
from posttrain.training.packing import Family, Member


@dataclass(frozen=True, slots=True)
class GRPO:
    """clip_epsilon: half-width of the trust region of the ratio. token_normaliser: N above, in tokens."""

    clip_epsilon: float = 0.2
    token_normaliser: float = 800.0
    std_epsilon: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("clip_epsilon", "token_normaliser", "std_epsilon"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"GRPO {name} is {value}: give a number > 0")

    def advantages(self, rewards: list[float]) -> list[float]:
        """One advantage for each scored attempt of a group; zeros where all rewards are alike."""
        n = len(rewards)
        if n < 2 or max(rewards) - min(rewards) <= 1e-9:
            return [0.0] * n
        mean = sum(rewards) / n
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1))
        return [(r - mean) / (std + self.std_epsilon) for r in rewards]

    def families(self, batch: Batch | Sequence[Group]) -> list[Family]:
        """What the trainer computes: the mixed groups; invalid attempts take no part."""
        checked = batch if isinstance(batch, Batch) else Batch(tuple(batch))  # refuses held-out tasks
        return [self._family(group) for group in checked if group.mixed]

    def _family(self, group: Group) -> Family:
        scored = group.scored
        first = scored[0][0]
        prompt = tuple(first.token_ids[: first.prompt_tokens].tolist())
        members = []
        for (trajectory, _), advantage in zip(scored, self.advantages([r for _, r in scored]), strict=True):
            start = trajectory.prompt_tokens
            assert tuple(trajectory.token_ids[:start].tolist()) == prompt, "attempts of a group share their prompt"
            mask = trajectory.policy_mask[start:].tolist()
            members.append(
                Member(
                    ids=tuple(trajectory.token_ids[start:].tolist()),
                    weight=tuple(1.0 / self.token_normaliser if m else 0.0 for m in mask),
                    advantage=tuple([advantage] * len(mask)),
                    sampled_logprob=tuple(trajectory.logprobs[start:].tolist()),
                )
            )
        return Family(prompt, tuple(members), group.task.domain)

    def token_loss(self, logprob_m: Tensor, sampled_logprob_m: Tensor, advantage_m: Tensor) -> Tensor:
        """[M] loss of each token, before its weight."""
        ratio = (logprob_m - sampled_logprob_m).exp()
        clipped = ratio.clamp(1 - self.clip_epsilon, 1 + self.clip_epsilon)
        return -torch.minimum(ratio * advantage_m, clipped * advantage_m)
