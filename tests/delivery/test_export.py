"""What is shipped computes what was trained, for peft and transformers, and nothing is shipped past its gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tiny

from posttrain.delivery.export import (
    ROUND_TRIP_NATS,
    ExportMismatch,
    check_round_trip,
    export_adapter,
    export_merged,
)
from posttrain.delivery.promotion import GateNotPassed, champion, promote
from posttrain.evaluation import Decision
from posttrain.inference.lora import LoRA, LoraAdapter
from posttrain.inference.sources import ModelFolder
from posttrain.loop.policy import Policy

PROMPTS = [[1, 2, 3, 4, 5], list(range(40))]


@pytest.fixture(scope="module", params=["tied", "untied"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoraAdapter, ModelFolder]:
    """An adapter that does something, on a model with random weights."""
    root = tmp_path_factory.mktemp("export")
    tiny.write_folder(root / "model", tiny.random_state())
    if request.param == "untied":
        head = torch.randn(tiny.CONFIG["vocab_size"], tiny.CONFIG["hidden_size"]) * 0.1
        save_file(tiny.random_state() | {"lm_head.weight": head}, root / "model/model.safetensors", {"format": "pt"})
        config = json.loads((root / "model/config.json").read_text()) | {"tie_word_embeddings": False}
        (root / "model/config.json").write_text(json.dumps(config))
    policy = Policy.load(str(root / "model"), adapter=LoRA(4, 8), dtype="float32", threads=1, cache=root / "cache")
    assert policy.adapter is not None
    assert policy.folder is not None
    tiny.randomise(policy.adapter, size=0.1)
    return policy.adapter, policy.folder


Trained = tuple[LoraAdapter, ModelFolder]


def test_the_merged_folder_gives_transformers_the_trained_policy(trained: Trained, tmp_path: Path) -> None:
    adapter, base = trained
    folder = export_merged(adapter, base, tmp_path / "merged")
    worst = check_round_trip(folder, adapter, base, PROMPTS)
    assert 0 <= worst <= 1e-4, "float32 on both sides"
    assert not list(tmp_path.glob(".*")), "a draft was left behind"
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder).encode("rev abcd=")
    assert ids == [tiny.ALPHABET.index(c) for c in "rev abcd="]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers for it
def test_the_adapter_gives_peft_the_trained_policy(trained: Trained, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter, base = trained
    export_adapter(adapter, base, tmp_path / "adapter")
    merged = export_merged(adapter, base, tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    expected = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        ids = torch.tensor([PROMPTS[1]])
        before = plain(ids).logits
        with_adapter = PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).eval()(ids).logits
        assert (with_adapter - expected(ids).logits).abs().max() < 1e-4
        assert (with_adapter - before).abs().max() > 0.1, "the adapter of this test does nothing"


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_a_folder_with_a_wrong_weight_is_not_shipped(trained: Trained, tmp_path: Path, name: str) -> None:
    adapter, base = trained
    folder = export_merged(adapter, base, tmp_path / "merged")
    state = load_file(folder / "model.safetensors")
    state[name] = state[name] * 1.01
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportMismatch, match="not exported"):
        check_round_trip(folder, adapter, base, PROMPTS)


def test_a_policy_whose_numbers_are_broken_is_not_shipped(trained: Trained, tmp_path: Path) -> None:
    adapter, base = trained
    folder = export_merged(adapter, base, tmp_path / "merged")
    broken = adapter.copy(torch.float32)
    broken.b[1, "down_proj"].fill_(float("nan"))
    with pytest.raises(ExportMismatch, match="nan"):
        check_round_trip(folder, broken, base, PROMPTS)


def test_a_forgotten_adapter_is_noticed(trained: Trained, tmp_path: Path) -> None:
    adapter, base = trained
    zero = adapter.copy(torch.float32)
    for b in zero.b.values():
        b.zero_()
    folder = export_merged(zero, base, tmp_path / "merged")
    assert check_round_trip(folder, zero, base, PROMPTS) <= ROUND_TRIP_NATS
    with pytest.raises(ExportMismatch):
        check_round_trip(folder, adapter, base, PROMPTS)


def test_a_second_export_replaces_the_first(trained: Trained, tmp_path: Path) -> None:
    adapter, base = trained
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "stale.bin").touch()
    export_adapter(adapter, base, tmp_path / "adapter")
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_an_export_that_fails_leaves_the_earlier_one_whole(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, base = trained
    export_adapter(adapter, base, tmp_path / "adapter")
    before = (tmp_path / "adapter" / "adapter_config.json").read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posttrain.delivery.export.save_file", full)
    with pytest.raises(OSError, match="No space"):
        export_adapter(adapter, base, tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def decision(verdict: Any) -> Decision:
    return Decision(verdict, ("retention fell",))


@pytest.mark.parametrize("verdict", ["refuse", "inconclusive"])
def test_nothing_is_promoted_past_a_gate_that_did_not_say_so(tmp_path: Path, verdict: str) -> None:
    pointer = tmp_path / "champion.json"
    promote(pointer, tmp_path / "first", decision("promote"), {"step": 1})
    with pytest.raises(GateNotPassed, match="retention fell"):
        promote(pointer, tmp_path / "second", decision(verdict), {})
    assert champion(pointer) == tmp_path / "first"
    assert json.loads(pointer.read_text())["step"] == 1


def test_before_the_first_promotion_there_is_no_champion(tmp_path: Path) -> None:
    assert champion(tmp_path / "champion.json") is None
    promote(tmp_path / "champion.json", tmp_path / "a", decision("promote"), {})
    promote(tmp_path / "champion.json", tmp_path / "b", decision("promote"), {})
    assert champion(tmp_path / "champion.json") == tmp_path / "b"
