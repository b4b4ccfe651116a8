"""Counts attempts without a verdict and says when there are too many to go on. Pure.

Why: an invalid attempt does no harm by itself (it takes no part in training), but a verifier that fails often makes
the rest a biased sample. Bound: at most `_REASONS` different reasons are told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from posttrain.records import Invalid, Reward

_REASONS = 1000


class TooManyInvalid(RuntimeError):
    """The share of attempts without a verdict passed its limit; the message names the most frequent reason."""


class InvalidBudget:
    """max_share: of invalid attempts, 0 to 1. min_seen: attempts before the share says anything."""

    def __init__(self, max_share: float = 0.2, min_seen: int = 50) -> None:
        if not 0 <= max_share <= 1:
            raise ValueError(f"max_share is {max_share!r}: give a share of attempts, 0 to 1")
        if min_seen < 1:
            raise ValueError(f"min_seen is {min_seen!r}: give a whole number >= 1")
        self.max_share, self.min_seen = max_share, min_seen
        self.seen = self.invalid = 0
        self.reasons: Counter[str] = Counter()

    def add(self, rewards: Iterable[Reward]) -> None:
        """Counts; raises TooManyInvalid where the limit is passed after all of them."""
        for reward in rewards:
            self.seen += 1
            if isinstance(reward, Invalid):
                self.invalid += 1
                known = reward.reason in self.reasons or len(self.reasons) < _REASONS
                self.reasons[reward.reason if known else "other reasons"] += 1
        if self.seen >= self.min_seen and self.invalid > self.max_share * self.seen:
            reason, count = self.reasons.most_common(1)[0]
            raise TooManyInvalid(
                f"{self.invalid} of {self.seen} attempts have no verdict (limit {self.max_share:.0%}); "
                f"most often ({count}x): {reason}"
            )
