"""The quickstart's parts, measured one by one on the real model: a training step, decoding, updating, agreement,
memory.

Peer in the same run: `transformers` generate() on the same model, prompts, dtype and threads (row
`PEER_hf_decode_tokens_per_s`).
"""

from __future__ import annotations

import asyncio
import random
import time

import torch

from _harness import Row, arguments, finish, repeat, row
from posttrain.inference.lora import LoRA
from posttrain.inference.sampling import SampleRequest
from posttrain.loop.policy import Policy
from posttrain.observability import peak_rss_bytes
from posttrain.records import Batch, Group, Split
from posttrain.rollout import Rollout
from posttrain.tasks import get_domain
from posttrain.training.grpo import GRPO

DOMAINS = ("arithmetic", "larger", "maximum", "last_word", "count_words", "tool_call")
GROUPS, GROUP_SIZE = 12, 8
NEW_TOKENS = 48


def training_steps(policy: Policy, count: int, first_seed: int = 0) -> list[tuple[float, float, list[Group]]]:
    """(seconds, computed tokens a second of the update, groups) of whole steps: generate, score, update. One step more
    is run first and thrown away: it starts the verifier's process and fills the caches."""

    async def run() -> list[tuple[float, float, list[Group]]]:
        found = []
        async with Rollout(policy, group_size=GROUP_SIZE) as rollout:
            for seed in range(first_seed, first_seed + count + 1):
                tasks = [
                    t for name in DOMAINS for t in get_domain(name).draw(GROUPS // len(DOMAINS), Split.TRAIN, seed)
                ]
                started = time.perf_counter()
                groups = await rollout.collect(tasks, seed=seed)
                metrics = policy.train(groups, loss=GRPO(), learning_rate=1e-5)
                seconds = time.perf_counter() - started
                found.append((seconds, metrics.get("computed_tokens", 0.0) / metrics["update_s"], groups))
        return found[1:]

    return asyncio.run(run())


def decode_rate(policy: Policy, seed: int) -> float:
    """New tokens a second: 64 attempts in groups of 8, a 64-token prompt, 48 new tokens each."""
    rng = random.Random(seed)
    requests = []
    for group in range(8):
        prompt = tuple(rng.randrange(100, 40_000) for _ in range(64))
        seeds = tuple(seed * 1000 + group * 8 + i for i in range(8))
        requests.append(SampleRequest(prompt, ((),) * 8, seeds, NEW_TOKENS))
    started = time.perf_counter()
    samples = policy.sample(requests)
    seconds = time.perf_counter() - started
    return sum(len(s.token_ids) for group in samples for s in group) / seconds


def hf_decode_rate(policy: Policy, dtype: torch.dtype, seed: int) -> float:
    """The peer: the same prompts, each attempt a row of its own, sampled at temperature 1."""
    from transformers import AutoModelForCausalLM

    assert policy.folder is not None
    model = AutoModelForCausalLM.from_pretrained(policy.folder.path, dtype=dtype)
    rng = random.Random(seed)
    rows = [[rng.randrange(100, 40_000) for _ in range(64)] for _ in range(8) for _ in range(1)]
    ids = torch.tensor([r for r in rows for _ in range(8)])
    settings = {
        "do_sample": True,
        "top_k": 0,
        "temperature": 1.0,
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
    }
    model.generate(
        ids[:8], attention_mask=torch.ones_like(ids[:8]), **(settings | {"max_new_tokens": 4, "min_new_tokens": 4})
    )
    started = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return float((out.shape[1] - 64) * len(ids) / (time.perf_counter() - started))


def gaps(policy: Policy, count: int) -> list[float]:
    """Largest |difference| of a sampled token's log-probability between sampler and trainer, by step; after `count`
    real updates, so that the adapter is not zero."""
    found = []
    loss = GRPO()

    async def run() -> None:
        async with Rollout(policy, group_size=GROUP_SIZE) as rollout:
            for seed in range(500, 501 + count):
                tasks = [t for name in DOMAINS for t in get_domain(name).draw(1, Split.TRAIN, seed)]
                groups = await rollout.collect(tasks, seed=seed)
                families = loss.families(Batch(tuple(groups)))
                if families:
                    found.append(policy.forward_backward(families, loss).logprob_gap_max)
                    policy.optim_step(3e-4)

    asyncio.run(run())
    return found[1:] or found


def main() -> None:
    options = arguments(__doc__ or "")
    times = 3 if options.quick else 9
    policy = Policy.load("smollm2-135m", adapter=LoRA())
    rows: list[Row] = []
    steps = training_steps(policy, times)
    rows.append(row("step_s", [s for s, _, _ in steps], "s", "<= 7"))
    rows.append(row("decode_tokens_per_s", repeat(min(times, 5), lambda: decode_rate(policy, 1)), "tokens/s"))
    rows.append(row("update_tokens_per_s", [rate for _, rate, _ in steps if rate], "tokens/s"))
    name = "logprob_gap_bf16" if policy.model.dtype is torch.bfloat16 else "logprob_gap_of_dtype_auto"
    rows.append(row(name, gaps(policy, 1 if options.quick else 3), "nats", "<= 0.02"))
    peer = [hf_decode_rate(policy, policy.model.dtype, 1) for _ in range(1 if options.quick else 3)]
    rows.append(row("PEER_hf_decode_tokens_per_s", peer, "tokens/s"))
    exact = Policy.load("smollm2-135m", adapter=LoRA(), dtype="float32")
    rows.append(row("logprob_gap_fp32", gaps(exact, 1 if options.quick else 3), "nats", "<= 0.0001"))
    rows.append(row("peak_rss_gib", [peak_rss_bytes() / 2**30], "GiB", "<= 4"))
    finish(
        rows,
        options.json,
        [f"dtype {policy.model.dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}"],
    )


if __name__ == "__main__":
    main()
