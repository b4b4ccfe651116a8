"""A run folder as a real run leaves it: a seeded simulation, judged by the real comparison, gate and diagnosis."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posttrain.evaluation import EvalResult, GatePolicy, ItemResult, compare, decide, diagnose
from posttrain.records import Failure, Group, Reward, Scored, Split, Task, Trajectory, user

# domain -> accuracy before, after
TRAINING = {
    "arithmetic": (0.37, 0.70),
    "comparison": (0.53, 0.87),
    "list reading": (0.33, 0.63),
    "counting": (0.17, 0.33),
    "xml tool call": (0.23, 0.87),
    "shell one-liners": (0.03, 0.40),
    "write-run-debug": (0.10, 0.27),
}
RETENTION = {"capitals": (0.57, 0.57), "next word": (0.73, 0.70)}
PER_DOMAIN = 30


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart-7")


def write_run(folder: Path, seed: int = 7) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    before, after = _evaluation(rng, 0), _evaluation(rng, 1)
    comparison = compare(before, after, set(TRAINING), set(RETENTION))
    diagnosis = diagnose(
        [g for name, (p, _) in TRAINING.items() for g in _groups(rng, name, p)], [*TRAINING, "sorting"]
    )
    summary = {
        **comparison.to_json(),
        "run_minutes": 8.4,
        "peak_rss_gib": 2.31,
        "decision": decide(comparison, GatePolicy()).to_json(),
        "seed": seed,
        "model": "SmolLM2-135M-Instruct",
        "recipe": "recipes/quickstart.toml",
        "command": f"posttrain run recipes/quickstart.toml --seed {seed}",
        "versions": {"posttrain": "0.1.0", "python": "3.11.9", "torch": "2.13.0+cpu", "transformers": "5.1.0"},
        "cost": {
            "evaluate_before_s": 61.0,
            "diagnose_s": 44.2,
            "demonstrations_s": 38.9,
            "sample_s": 171.3,
            "update_s": 112.8,
            "verify_s": 14.6,
            "evaluate_after_s": 58.1,
            "policy_tokens": 48120,
            "prompt_tokens": 91400,
        },
    }
    for name, value in {
        "summary": summary,
        "diagnosis": diagnosis.to_json(),
        "eval_before": before.to_json(),
        "eval_after": after.to_json(),
        "episodes": _episodes(),
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(value, allow_nan=False))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _metrics(rng)))
    return folder


def _evaluation(rng: np.random.Generator, side: int) -> EvalResult:
    items = []
    for name, rates in (TRAINING | RETENTION).items():
        right = set(rng.permutation(PER_DOMAIN)[: round(rates[side] * PER_DOMAIN)].tolist())
        for i in range(PER_DOMAIN):
            failure = None if i in right else str(rng.choice([Failure.WRONG, Failure.NO_ANSWER, Failure.FORMAT]))
            items.append(
                ItemResult(f"{name}/dev/{i:04x}", name, float(i in right), i in right, failure, "31 + 12 = 43", 0.2)
            )
    return EvalResult(tuple(items), policy_version=side * 28)


def _groups(rng: np.random.Generator, domain: str, rate: float) -> list[Group]:
    groups = []
    for index in range(8):
        task = Task(domain, Split.TRAIN, (user(f"{domain} {index}"),), "exact", index)
        p = float(np.clip(rng.beta(4 * rate + 0.1, 4 * (1 - rate)), 0, 1))
        rewards: list[Reward] = []
        for _ in range(8):
            reason = str(rng.choice(Failure.ALL, p=[0.5, 0.2, 0.15, 0.1, 0.05]))
            rewards.append(Scored(1.0) if rng.random() < p else Scored(0.0, failure=reason))
        groups.append(Group(task, tuple(Trajectory(task.id, attempt=i) for i in range(8)), tuple(rewards)))
    return groups


def _metrics(rng: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "step": i,
            "phase": "sft",
            "nll": 2.1 * math.exp(-i / 4) + 0.4 + 0.05 * rng.random(),
            "learning_rate": 3e-4,
            "grad_norm": 1.5 + 0.5 * rng.random(),
            "step_s": 3.2,
        }
        for i in range(12)
    ]
    for i in range(36):
        progress = 1 - math.exp(-i / 14)
        reward = {
            n: float(np.clip(a + (b - a) * progress + 0.07 * rng.standard_normal(), 0, 1))
            for n, (a, b) in TRAINING.items()
        }
        rows.append(
            {
                "step": i,
                "phase": "rl",
                "reward_mean": sum(reward.values()) / len(reward),
                "mixed_share": 0.62 - 0.2 * progress + 0.06 * rng.random(),
                "nll": 0.9 - 0.4 * progress + 0.04 * rng.random(),
                "learning_rate": 3e-4 * min(1, (i + 1) / 3),
                "grad_norm": 0.6 + 0.3 * rng.random(),
                "logprob_gap": 2e-5 + 1e-5 * rng.random(),
                "step_s": 7.5 + rng.random(),
                "domain_reward": reward,
                "invalid": int(rng.random() < 0.1),
                "domain_share": {n: 1 / len(reward) for n in reward},
            }
        )
    return rows


def _episodes() -> list[dict[str, Any]]:
    def episode(
        domain: str, when: str, turns: list[tuple[str, str]], reward: float | None, failure: str | None
    ) -> dict[str, Any]:
        spoken = [{"producer": producer, "text": text} for producer, text in turns]
        return {
            "task_id": f"{domain}/dev/9f3a",
            "domain": domain,
            "when": when,
            "turns": spoken,
            "reward": reward,
            "failure": failure,
        }

    call = "You may call <calc>a*b</calc>.\nQuestion: how much is 17 times 6?\n"
    add = "27 + 8 = 35\n31 + 12 = 43\n58 + 27 ="
    code = "Write a function largest(values) that returns the largest value, or None for an empty list.\n"
    return [
        episode("arithmetic", "before", [("prompt", add), ("policy", " 75\n")], 0.0, Failure.WRONG),
        episode("arithmetic", "after", [("prompt", add), ("policy", " 85\n")], 1.0, None),
        episode(
            "xml tool call", "before", [("prompt", call), ("policy", "17 times 6 is 96.\n")], 0.0, Failure.NO_ANSWER
        ),
        episode(
            "xml tool call",
            "after",
            [
                ("prompt", call),
                ("policy", "<calc>17*6</calc>"),
                ("environment", "<result>102</result>\n"),
                ("policy", "The answer is 102.\n"),
            ],
            1.0,
            None,
        ),
        episode(
            "write-run-debug",
            "before",
            [
                ("prompt", code),
                ("policy", "def largest(values):\n    return max(values\n"),
                ("environment", "SyntaxError: '(' was never closed\n"),
                ("policy", "max(values)\n"),
            ],
            0.0,
            Failure.TRUNCATED,
        ),
        episode(
            "write-run-debug",
            "after",
            [
                ("prompt", code),
                ("policy", "def largest(values):\n    return max(values)\n"),
                ("environment", "1 of 2 tests failed\nValueError: max() iterable argument is empty\n"),
                ("policy", "def largest(values):\n    return max(values) if values else None\n"),
            ],
            0.95,
            None,
        ),
        episode(
            "shell one-liners",
            "before",
            [("prompt", "Count the lines of notes.txt.\n$"), ("policy", " cat notes\n")],
            None,
            "sandbox died",
        ),
    ]
