"""One measurement of one model, without training: what `posttrain eval` does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file

from posttrain.evaluation import EvalResult
from posttrain.evaluation.measure import measure
from posttrain.inference.lora import LoRA
from posttrain.loop.policy import Policy
from posttrain.loop.preflight import check_prompts
from posttrain.observability import Reporter, SilentReporter
from posttrain.records import Split
from posttrain.rollout import Rollout
from posttrain.tasks import get_domain


class AdapterError(ValueError):
    """A folder that holds no adapter which this model can use."""


def evaluate_model(
    source: str,
    domains: Sequence[str],
    *,
    items_per_domain: int = 30,
    split: str = "dev",
    adapter: Path | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    reporter: Reporter | None = None,
) -> EvalResult:
    """Greedy accuracy of a model on held-out tasks of built-in domains.

    source: as for `Policy.load`. adapter: a folder in PEFT format. Raises ValueError-family errors with the mend for
    an unknown domain, a model that can not be had or an adapter for another model.
    """
    reporter = reporter or SilentReporter()
    found = [get_domain(name) for name in domains]
    tasks = [t for d in found for t in d.draw(items_per_domain, Split(split), seed)]
    reporter.stage("Model", source)
    policy = load_with_adapter(source, adapter)
    check_prompts(policy, tasks)
    reporter.stage("Evaluate", f"{len(tasks)} held-out tasks of {len(found)} domains")

    async def run() -> EvalResult:
        async with Rollout(policy) as rollout:
            result, _ = await measure(
                rollout, tasks, confidence=confidence, progress=lambda done, total: reporter.advance(done, total)
            )
            return result

    return asyncio.run(run())


def load_with_adapter(source: str, adapter: Path | None) -> Policy:
    """The policy with a PEFT adapter, or without one. Raises `AdapterError` where the folder does not fit."""
    if adapter is None:
        return Policy.load(source)
    try:
        config = json.loads((adapter / "adapter_config.json").read_text())
        odd = [key for key in ("use_rslora", "use_dora", "alpha_pattern", "rank_pattern") if config.get(key)]
        if odd:
            raise AdapterError(f"{adapter} uses {odd[0]}, which posttrain does not compute: export a plain LoRA")
        spec = LoRA(int(config["r"]), float(config["lora_alpha"]))
        state = load_file(adapter / "adapter_model.safetensors")
        with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
            base = (file.metadata() or {}).get("base_model")
    except AdapterError:
        raise
    except FileNotFoundError as missing:
        raise AdapterError(
            f"{missing.filename}: not there; give a folder in PEFT format, like RUN/exports/adapter"
        ) from None
    except Exception as error:  # noqa: BLE001 - boundary: the file formats' own errors, whatever their class
        raise AdapterError(f"{adapter} is no adapter in PEFT format ({type(error).__name__}: {error})") from None
    policy = Policy.load(source, adapter=spec)
    assert policy.adapter is not None
    if base is not None and base != policy.base_model:
        raise AdapterError(f"{adapter} was trained on another model than {source}: give that one")
    policy.adapter.load(state)
    return policy
