"""What a user can get wrong about a domain: one line each, with the mend in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DomainError(ValueError):
    """A domain that can not give tasks, and what to change."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else the list of what there is (cut at 12)."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(repr(c) for c in close)}?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"; there is: {shown}" if names else ""
