"""Shell one-liners: what their environment needs, as pure functions.

A task's settings: `files` (relative path -> text), written into a fresh folder in which the command runs. The answer
is what the right command prints. Run it with `ENVIRONMENT`: the order of `sort` and `ls` must not depend on the
machine.
"""

from __future__ import annotations

ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}


def command_of(text: str) -> str:
    """The command line in a policy's turn: its first line, without a prompt sign in front. '' where there is none."""
    lines = text.strip().splitlines()
    return lines[0].removeprefix("$").strip() if lines else ""
