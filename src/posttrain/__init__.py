"""posttrain: turns a pretrained language model into one that does real work.

The names of `__all__` are loaded when they are first used: `import posttrain` costs milliseconds and needs no torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.inference.lora import LoRA
    from posttrain.loop.policy import Policy
    from posttrain.records import Attempt, Batch, Group, Invalid, Scored, Split, Task, Trajectory
    from posttrain.rollout.rollout import Rollout
    from posttrain.sandbox import SandboxPool, SandboxSpec
    from posttrain.tasks.domain import Domain
    from posttrain.training.grpo import GRPO

# Before torch is loaded: threads of its CPU kernels that spin for each other lose a hundredfold when another process
# wants one of the cores; a short spin keeps the speed of an idle machine. Whoever has set a policy keeps it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
# A compiled kernel with its buffers is kept for each shape of a product, 1024 of them by default: gigabytes, since the
# number of tokens differs each time.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

__all__ = [
    "GRPO",
    "Attempt",
    "Batch",
    "Domain",
    "Group",
    "Invalid",
    "LoRA",
    "Policy",
    "Rollout",
    "SandboxPool",
    "SandboxSpec",
    "Scored",
    "Split",
    "Task",
    "Trajectory",
]

_HOMES = {
    "GRPO": "posttrain.training.grpo",
    "Domain": "posttrain.tasks.domain",
    "LoRA": "posttrain.inference.lora",
    "Policy": "posttrain.loop.policy",
    "Rollout": "posttrain.rollout.rollout",
    "SandboxPool": "posttrain.sandbox",
    "SandboxSpec": "posttrain.sandbox",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("posttrain")
    elif name in __all__:
        value = getattr(importlib.import_module(_HOMES.get(name, "posttrain.records")), name)
    else:
        raise AttributeError(f"module 'posttrain' has no attribute {name!r}")
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
