"""What goes wrong with a model source: one line, with the mend."""

from __future__ import annotations


class ModelSourceError(ValueError):
    """A model can not be found, read, understood or stored. The message is one line and says what to do."""
