"""Shares of the domains that measure what training forgets: nearly every item is held out."""

from __future__ import annotations

from typing import TypedDict


class Shares(TypedDict):
    dev_share: float
    sealed_share: float


# One item in a thousand falls on the training side: too few to train on by mistake, and a batch of dev tasks is
# refused anyway.
RETENTION_SHARES: Shares = {"dev_share": 0.899, "sealed_share": 0.1}
