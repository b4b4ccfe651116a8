"""The one family of errors that a wrong configuration raises."""

from __future__ import annotations


class ConfigError(ValueError):
    """What the user wrote can not be used. The message is one line: where, what, and how to mend it."""
