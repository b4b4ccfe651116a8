"""Measured: how often SmolLM2-135M-Instruct passes each domain before training."""

from __future__ import annotations

from collections import defaultdict

from posttrain.tasks.card import BaseRate

BASE: defaultdict[str, tuple[BaseRate, ...]] = defaultdict(tuple)
