"""Whether two recipes ask for the same result: a checksum of everything that can change one."""

from __future__ import annotations

import hashlib
import json

from posttrain.config.recipe import Recipe

# Where the run writes and when it gives up change no number it computes. `model.threads` does: sums of floats depend
# on the order in which threads add them, so it stays in.
WITHOUT_EFFECT = {"run": {"folder", "minutes_limit"}}


def recipe_fingerprint(recipe: Recipe) -> str:
    """SHA-256 (hex) over the recipe's values, sorted by key; equal recipes agree however they were written down."""
    values = recipe.model_dump(mode="json", exclude=WITHOUT_EFFECT)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
