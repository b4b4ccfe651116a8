"""Who is champion: the checkpoint that passed its gate.

Invariant: nothing is promoted past a failed or inconclusive gate; the pointer is replaced in one step.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from posttrain.evaluation import Decision
from posttrain.storage import write_atomic


class GateNotPassed(ValueError):
    """A candidate whose gate did not say `promote`."""


def promote(pointer: Path, candidate: Path, decision: Decision, details: dict[str, Any]) -> None:
    """Points `pointer` (a JSON file) at `candidate`. Raises `GateNotPassed` unless the decision is to promote."""
    if decision.verdict != "promote":
        raise GateNotPassed(f"the gate said {decision.verdict}: {'; '.join(decision.reasons)}")
    content = {"champion": str(candidate), "promoted_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | details
    write_atomic(pointer, (json.dumps(content, indent=2) + "\n").encode())


def champion(pointer: Path) -> Path | None:
    """The folder of the promoted model, None before the first promotion."""
    if not pointer.exists():
        return None
    return Path(json.loads(pointer.read_text())["champion"])
