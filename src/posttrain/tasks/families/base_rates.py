"""Measured: how often SmolLM2-135M-Instruct passes each domain before training.

How: bfloat16, held-out items of the dev split (`draw(n, "dev", 11)`), through `Rollout` with real sandboxes; greedy
over n items, temperature 1 over 24 of them with 8 samples each. `write_run_debug` counts what passes within its two
attempts.
"""

from __future__ import annotations

from posttrain.tasks.card import BaseRate


def _measured(
    greedy: float, n: int, pass_at_1: float, pass_at_8: float, prompt_tokens: float, answer_tokens: float
) -> BaseRate:
    return BaseRate("SmolLM2-135M-Instruct", greedy, pass_at_1, pass_at_8, 8, n, prompt_tokens, answer_tokens)


BASE: dict[str, tuple[BaseRate, ...]] = {
    "arithmetic": (_measured(0.17, 60, 0.1, 0.42, 29.0, 5.1),),
    "larger": (_measured(0.62, 60, 0.43, 0.75, 45.5, 5.3),),
    "maximum": (_measured(0.35, 60, 0.22, 0.46, 64.9, 4.9),),
    "last_word": (_measured(0.77, 60, 0.44, 0.92, 44.2, 3.7),),
    "count_words": (_measured(0.0, 60, 0.11, 0.62, 49.0, 3.3),),
    "tool_call": (_measured(0.62, 60, 0.12, 0.62, 106.1, 23.5),),
    "shell": (_measured(0.15, 60, 0.01, 0.08, 73.2, 12.1),),
    "write_run_debug": (_measured(0.65, 60, 0.16, 0.62, 66.0, 35.9),),
    "one_digit_add": (_measured(0.64, 36, 0.6, 0.96, 21.0, 3.7),),
    "multiply": (_measured(0.5, 36, 0.42, 0.71, 23.5, 4.4),),
    "capitals": (_measured(0.82, 60, 0.6, 0.92, 25.6, 2.9),),
    "plural": (_measured(0.86, 36, 0.7, 0.92, 19.5, 2.4),),
    "opposites": (_measured(0.78, 36, 0.5, 0.92, 21.1, 2.3),),
}
