"""How one episode runs: policy + environment -> trajectory."""

from posttrain.rollout.environment import Environment, Feedback, UnknownEnvironment, make_environment
from posttrain.rollout.rollout import Policy, Rollout, as_attempt, attempt_seed, before_stop
from posttrain.rollout.scripted import ScriptedPolicy

__all__ = [
    "Environment",
    "Feedback",
    "Policy",
    "Rollout",
    "ScriptedPolicy",
    "UnknownEnvironment",
    "as_attempt",
    "attempt_seed",
    "before_stop",
    "make_environment",
]
