"""A trained policy in the forms that others load: a PEFT adapter and a merged Hugging Face folder.

Invariant: an export is finished only after a round trip: the merged folder, loaded by `transformers`, gives the
log-probabilities of base model + adapter within `ROUND_TRIP_NATS`. Folders appear whole or not at all (written beside,
then renamed). Merging needs float32: a bfloat16 weight would round most of a small update away.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from posttrain.inference.architecture import Architecture
from posttrain.inference.attention import ROOT, Tree, TreeAttention
from posttrain.inference.lora import PROJECTIONS, LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.inference.sources import ModelFolder
from posttrain.storage import require_free
from posttrain.storage.atomic import flush, temporary_beside

ROUND_TRIP_NATS = 2e-3  # float32 on both sides; other kernels sum in another order
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")


class ExportMismatch(RuntimeError):
    """What was written does not compute what was trained."""


def export_adapter(adapter: LoraAdapter, base: ModelFolder, folder: Path) -> Path:
    """Writes adapter_config.json and adapter_model.safetensors, as `peft.PeftModel.from_pretrained` reads them."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.path),
        "r": adapter.spec.rank,
        "lora_alpha": adapter.spec.alpha,
        "target_modules": list(PROJECTIONS),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    tensors = {name: p.detach().cpu().contiguous() for name, p in adapter.parameters().items()}
    require_free(folder.parent, sum(t.nbytes for t in tensors.values()), "the adapter")
    with _whole(folder) as draft:
        save_file(tensors, draft / "adapter_model.safetensors", metadata={"format": "pt", "base_model": base.checksum})
        (draft / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


def merged_state(adapter: LoraAdapter, base: ModelFolder) -> dict[str, Tensor]:
    """Float32 weights W + (alpha / rank) B A under Hugging Face names."""
    state = {name: tensor.float() for name, tensor in base.load_state().items()}
    with torch.no_grad():
        for layer in range(adapter.layers):
            for projection in PROJECTIONS:
                block = "self_attn" if projection in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
                state[f"model.layers.{layer}.{block}.{projection}.weight"] += adapter.delta(layer, projection).cpu()
    return state


def export_merged(adapter: LoraAdapter, base: ModelFolder, folder: Path) -> Path:
    """Writes a folder that `transformers.AutoModelForCausalLM.from_pretrained` loads without posttrain."""
    state = merged_state(adapter, base)
    require_free(folder.parent, sum(t.nbytes for t in state.values()), "the merged model")
    with _whole(folder) as draft:
        save_file(state, draft / "model.safetensors", metadata={"format": "pt"})
        config = dict(base.config) | {"dtype": "float32"}
        config.pop("torch_dtype", None)
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for name in _TOKENIZER_FILES:
            if (base.path / name).exists():
                shutil.copyfile(base.path / name, draft / name)
    return folder


@torch.no_grad()
def check_round_trip(folder: Path, adapter: LoraAdapter, base: ModelFolder, prompts: Sequence[Sequence[int]]) -> float:
    """Largest |difference| of a token's log-probability between `transformers` on the merged folder and ours on base +
    adapter.

    prompts: token ids. Raises `ExportMismatch` beyond `ROUND_TRIP_NATS`.
    """
    ours = _our_logprobs(adapter, base, prompts)
    from transformers import AutoModelForCausalLM  # seconds to import, so only where an export is checked
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would write over the run's own
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    gaps = []
    for ids, expected in zip(prompts, ours, strict=True):
        got = theirs(torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)
        gaps.append((got - expected).abs().max())
    worst = float(torch.stack(gaps).max())  # a NaN stays one, and is refused
    if not worst <= ROUND_TRIP_NATS:
        raise ExportMismatch(
            f"the merged folder {folder} differs from the trained policy by {worst:.3g} nats "
            f"(limit {ROUND_TRIP_NATS:g}): not exported"
        )
    return worst


def _our_logprobs(adapter: LoraAdapter, base: ModelFolder, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    model = Transformer(Architecture.from_config(base.config), base.load_state(), dtype=torch.float32)
    exact = adapter.copy(torch.float32)
    out = []
    for ids in prompts:
        attention = TreeAttention([Tree(((len(ids), ROOT),))], model.device)
        hidden = model.forward(torch.tensor(list(ids)), torch.arange(len(ids)), attention, exact.fused())
        out.append(model.logits(hidden).log_softmax(-1))
    del model
    gc.collect()  # half a gigabyte that the check of the other side needs
    return out


class _whole:  # noqa: N801 - reads as a verb: `with _whole(folder) as draft`
    """A folder that appears with everything in it or not at all."""

    def __init__(self, folder: Path):
        self.folder, self.draft = folder, temporary_beside(folder)

    def __enter__(self) -> Path:
        self.draft.mkdir(parents=True)
        return self.draft

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            shutil.rmtree(self.draft, ignore_errors=True)
            return
        for file in self.draft.iterdir():
            flush(file)
        flush(self.draft)
        if self.folder.exists():
            shutil.rmtree(self.folder)  # an earlier export of the same run
        self.draft.replace(self.folder)
        flush(self.folder.parent)
