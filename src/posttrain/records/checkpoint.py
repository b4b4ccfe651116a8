"""What a saved state of a run is: which weights, made from what, and how to tell that they are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state. files: relative path -> SHA-256 (hex) of each file; base_model: checksum of the frozen weights.

    policy_version: number of optimizer updates behind the weights. step: the run's next step.
    """

    run_id: str
    step: int
    policy_version: int
    base_model: str
    files: Mapping[str, str] = field(default_factory=dict)
    format_version: int = 1

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` reads back."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"files": dict(self.files)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Checkpoint:
        if value.get("format_version") != 1:
            found = value.get("format_version")
            raise ValueError(f"checkpoint format {found!r}: this version of posttrain reads 1; upgrade posttrain")
        names = {f.name for f in fields(cls)}
        if set(value) != names:
            raise ValueError(f"a checkpoint has the fields {sorted(names)}, not {sorted(value)}")
        return cls(**value)
