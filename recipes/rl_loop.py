"""A complete RL loop that you own: a domain of your own, a policy, groups, updates, and the proof that it helped.

    python recipes/rl_loop.py                       # SmolLM2-135M on the CPU, a few minutes
    python recipes/rl_loop.py --steps 2 --model DIR # any Llama-shaped Hugging Face folder

Copy this file and change it: the task, the verifier, the loss. Left out on purpose: checkpoints, a mixture of domains,
the gate and the report, which `posttrain run` adds.
"""

from __future__ import annotations

import argparse
import asyncio
import random

import posttrain
from posttrain import GRPO, Attempt, LoRA, Task
from posttrain.evaluation.measure import measure

NAMES = (
    "anna",
    "boris",
    "clara",
    "david",
    "elena",
    "felix",
    "greta",
    "henry",
    "irene",
    "jonas",
    "karin",
    "louis",
    "maria",
)
SHOTS = "Name: peter\nBadge: PETER-7\nName: sofia\nBadge: SOFIA-3\n"


def make_task(rng: random.Random) -> dict[str, str]:
    """One problem: a badge is the name in capital letters, a dash, and the number of the desk."""
    first, second = rng.sample(NAMES, 2)
    desk = rng.randint(1, 9)
    return {
        "question": f"{SHOTS}Name: {first} {second}, desk {desk}\nBadge:",
        "answer": f"{first.upper()} {second.upper()}-{desk}",
    }


def verify(task: Task, attempt: Attempt) -> float:
    """1 for the right badge; part of it for capital letters alone, so that there is a slope to climb."""
    said = attempt.answer.strip()
    if said == task.answer:
        return 1.0
    return 0.2 * (said.isupper() and bool(said)) + 0.3 * (
        said.partition("-")[0].strip() == task.answer.partition("-")[0]
    )


async def main(model: str, steps: int, tasks_per_step: int, items: int) -> tuple[float, float]:
    policy = posttrain.Policy.load(model, adapter=LoRA(rank=16))
    domain = posttrain.Domain("badges", tasks=make_task, verifier=verify)
    held_out = domain.draw(items, split="dev", seed=1)
    async with posttrain.Rollout(policy, group_size=8) as rollout:
        before, _ = await measure(rollout, held_out)
        for step in range(steps):
            groups = await rollout.collect(domain.sample(tasks_per_step))
            metrics = policy.train(groups, loss=GRPO(), learning_rate=3e-4)
            print(f"step {step:2d}  reward {metrics['reward_mean']:.2f}  mixed groups {metrics['mixed_share']:.0%}")
        after, episodes = await measure(rollout, held_out, policy_version=policy.version)
    print(f"one episode: {episodes[0].trajectories[0].answer.strip()!r}, wanted {episodes[0].task.answer!r}")
    scores = before.by_domain["badges"].accuracy, after.by_domain["badges"].accuracy
    assert scores[0] is not None and scores[1] is not None, "every item lost its verdict"
    print(f"held-out accuracy {scores[0]:.2f} -> {scores[1]:.2f}  (n = {items})")
    return scores[0], scores[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=12, help="tasks a step, 8 attempts at each")
    parser.add_argument("--items", type=int, default=40, help="held-out tasks, measured before and after")
    options = parser.parse_args()
    asyncio.run(main(options.model, options.steps, options.tasks, options.items))
