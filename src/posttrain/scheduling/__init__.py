"""What runs next: which domains a step draws from, and how fast it may learn. Pure cores; no torch."""

from posttrain.scheduling.guard import GuardPolicy, GuardState, Verdict
from posttrain.scheduling.mixture import (
    DomainState,
    MixturePolicy,
    MixtureState,
    allocate,
    observe,
    observe_group,
    shares,
)

__all__ = [
    "DomainState",
    "GuardPolicy",
    "GuardState",
    "MixturePolicy",
    "MixtureState",
    "Verdict",
    "allocate",
    "observe",
    "observe_group",
    "shares",
]
