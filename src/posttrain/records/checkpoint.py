"""What a saved state of a run is: which weights, made from what, and how to tell that they are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Checkpoint:
        if value.get("format_version") != 1:
            raise ValueError(f"checkpoint format {value.get('format_version')!r}: this version of posttrain reads 1; upgrade posttrain")
        return cls(**value)
