"""A policy that says what it was told to: demonstrations are verified by playing them in the real environment.

Also the yardstick of an environment: a perfect script must be rewarded, a wrong one not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from posttrain.inference.renderer import Renderer
from posttrain.inference.sampling import Sample, SampleRequest
from posttrain.records import StopReason, Task


class ScriptedPolicy:
    """scripts: for each task the turns that every attempt at it says, in order; the last one is repeated if need be.

    Each turn gets the environment's first stop string, unless it brings one. Log-probabilities are 0 (it is certain),
    the version 0.
    """

    def __init__(
        self, renderer: Renderer, scripts: Sequence[tuple[Task, Sequence[str]]], *, max_context_tokens: int = 2048
    ):
        self.renderer = renderer
        self.max_context_tokens = max_context_tokens
        self._turns: Mapping[tuple[int, ...], tuple[str, ...]] = {
            tuple(renderer.render(task)): tuple(_ended(turn, task.environment.stop) for turn in turns)
            for task, turns in scripts
        }
        self._said: dict[tuple[tuple[int, ...], int], int] = {}

    def sample(self, requests: list[SampleRequest]) -> list[list[Sample]]:
        """The next turn of each attempt (told apart by its seed). Raises KeyError for a prompt without a script."""
        return [[self._next(request, seed) for seed in request.seeds] for request in requests]

    def _next(self, request: SampleRequest, seed: int) -> Sample:
        turns = self._turns[request.prefix]
        index = self._said.get((request.prefix, seed), 0)
        self._said[request.prefix, seed] = index + 1
        text = turns[min(index, len(turns) - 1)]
        ids = tuple(self.renderer.encode(text))
        return Sample(ids, (0.0,) * len(ids), StopReason.STOP, 0, text)


def _ended(turn: str, stop: Sequence[str]) -> str:
    return turn if not stop or any(s in turn for s in stop) else turn + stop[0]
