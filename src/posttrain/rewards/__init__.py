"""What is an attempt worth, and can that be trusted? Verifiers, the process they run in, and the count of those that
failed."""

from posttrain.rewards.budget import InvalidBudget, TooManyInvalid
from posttrain.rewards.checkers import BUILTIN
from posttrain.rewards.process import VerifierProcess
from posttrain.rewards.resolve import UnknownVerifier, resolve_verifier
from posttrain.rewards.verdict import Verifier, as_reward

__all__ = [
    "BUILTIN",
    "InvalidBudget",
    "TooManyInvalid",
    "UnknownVerifier",
    "Verifier",
    "VerifierProcess",
    "as_reward",
    "resolve_verifier",
]
