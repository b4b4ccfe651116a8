"""A policy that is saved and loaded goes on as if it had not been, and refuses what is not its own."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny

from posttrain.inference.lora import LoRA
from posttrain.loop.policy import NothingToTrain, Policy, pick_dtype
from posttrain.records import Group, HeldOutLeak, Split
from posttrain.rollout import Rollout
from posttrain.training.grpo import GRPO
from posttrain.training.sft import SFT


def load(seed: int = 0, rank: int = 4, alpha: float = 8.0) -> Policy:
    return tiny.load_policy(adapter=LoRA(rank, alpha), seed=seed)


async def groups_of(policy: Policy, seed: int, split: Split = Split.TRAIN) -> list[Group]:
    tasks = [t for name in ("reverse", "largest") for t in tiny.domains()[name].draw(6, split, seed)]
    async with Rollout(policy, group_size=8) as rollout:
        return await rollout.collect(tasks, seed=seed)


def tensors(policy: Policy) -> dict[str, torch.Tensor]:
    assert policy.trainer is not None
    return {name: t.clone() for name, t in policy.trainer.state().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def timeless(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith("_s")}


async def test_a_loaded_state_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight = load()
    for step in range(2):
        straight.train(await groups_of(straight, step), learning_rate=3e-3)
    straight.save_state(tmp_path / "state.safetensors")
    resumed = load(seed=7)  # other initial matrices: all of them must come from the file
    for step in range(5, 7):  # what it sampled and learnt before, up to the same version, must not linger either
        resumed.train(await groups_of(resumed, step), learning_rate=3e-3)
    await groups_of(resumed, 2)
    assert resumed.version == 2
    resumed.load_state(tmp_path / "state.safetensors")
    assert resumed.version == straight.version == 2
    for step in range(2, 4):
        theirs = await groups_of(resumed, step)
        ours = await groups_of(straight, step)
        assert [t.token_ids.tolist() for g in theirs for t in g.trajectories] == [
            t.token_ids.tolist() for g in ours for t in g.trajectories
        ]
        one = timeless(straight.train(ours, learning_rate=3e-3))
        assert one == timeless(resumed.train(theirs, learning_rate=3e-3))
        assert one["updated"] == 1.0
    assert equal(tensors(straight), tensors(resumed))
    assert straight.version == resumed.version == 4


async def test_a_state_saved_before_the_first_update_can_be_loaded_over_a_later_one(tmp_path: Path) -> None:
    policy = load()
    policy.save_state(tmp_path / "start.safetensors")
    start = tensors(policy)
    policy.train(await groups_of(policy, 0), learning_rate=3e-3)
    assert not equal(start, tensors(policy))
    policy.load_state(tmp_path / "start.safetensors")
    assert equal(start, tensors(policy)), "moments of the optimizer are part of the state"
    assert policy.version == 0


async def test_every_update_is_a_version_and_sampled_tokens_carry_it() -> None:
    policy = load()
    for version in range(3):
        groups = await groups_of(policy, version)
        for group in groups:
            for t in group.trajectories:
                assert set(t.policy_versions[t.policy_mask].tolist()) == {version}
        policy.train(groups, learning_rate=1e-3)
        assert policy.version == version + 1


async def test_groups_without_contrast_make_no_update_and_no_version() -> None:
    policy = load()
    groups = [g for g in await groups_of(policy, 0) if not g.mixed]
    before = tensors(policy)
    assert groups, "this test needs groups without contrast"
    metrics = policy.train(groups)
    assert metrics["updated"] == 0.0
    assert metrics["mixed_share"] == 0.0
    assert policy.version == 0
    assert equal(before, tensors(policy))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"rank": 8, "alpha": 16.0}, "rank"),
        ({"rank": 4, "alpha": 16.0}, "alpha"),  # same shapes, another policy
    ],
)
def test_a_state_of_another_adapter_is_refused(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    load().save_state(tmp_path / "state.safetensors")
    policy = load(**other)
    before = tensors(policy)
    with pytest.raises(ValueError, match=said):
        policy.load_state(tmp_path / "state.safetensors")
    assert equal(before, tensors(policy))


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path / "model", tiny.random_state(seed=5))
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "cache": tmp_path / "cache"}
    other = Policy.load(str(tmp_path / "model"), adapter=LoRA(4, 8), **options)
    other.save_state(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="another model"):
        load().load_state(tmp_path / "state.safetensors")


@pytest.mark.parametrize("content", [b"", b"\x00\x01", struct.pack("<Q", 2**40) + b"{}", b"\xff" * 64])
def test_a_state_that_was_cut_off_is_an_error_in_one_line(tmp_path: Path, content: bytes) -> None:
    policy = load()
    policy.save_state(tmp_path / "whole.safetensors")
    for file in (content, (tmp_path / "whole.safetensors").read_bytes()[:-100]):
        (tmp_path / "state.safetensors").write_bytes(file)
        with pytest.raises(ValueError, match=r"state\.safetensors"):
            policy.load_state(tmp_path / "state.safetensors")


async def test_a_refused_call_leaves_no_gradient_for_the_next_one() -> None:
    policy, twin = load(), load()
    groups = await groups_of(policy, 0)
    for bad in ({"learning_rate": -1.0}, {"learning_rate": float("nan")}, {"max_grad_norm": 0.0}):
        with pytest.raises(ValueError, match="give a number"):
            policy.train(groups, **bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="GRPO trains on groups"):
        policy.train([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SFT trains on demonstrations"):
        policy.train(groups, loss=SFT())
    assert timeless(policy.train(groups)) == timeless(twin.train(groups))
    assert equal(tensors(policy), tensors(twin))


async def test_held_out_groups_are_never_trained_on() -> None:
    policy = load()
    with pytest.raises(HeldOutLeak):
        policy.train(await groups_of(policy, 0, Split.DEV), loss=GRPO())
    assert policy.version == 0


def test_a_policy_without_an_adapter_samples_but_does_not_train() -> None:
    policy = tiny.load_policy()
    for call in (lambda: policy.optim_step(1e-3), lambda: policy.forward_backward([], GRPO()), policy.discard_gradient):
        with pytest.raises(NothingToTrain, match="adapter=LoRA"):
            call()


def test_the_adapter_starts_as_the_base_model_and_depends_on_its_seed() -> None:
    one, same, other = load(seed=1), load(seed=1), load(seed=2)
    assert equal(tensors(one), tensors(same))
    assert not equal(tensors(one), tensors(other))
    assert one.adapter is not None
    assert all(not b.any() for b in one.adapter.b.values())


def test_the_dtype_asked_for_is_the_one_that_computes() -> None:
    assert pick_dtype("float32") is torch.float32
    assert pick_dtype("bfloat16") is torch.bfloat16
    assert pick_dtype("auto") in (torch.float32, torch.bfloat16)
    assert tiny.load_policy(dtype="bfloat16").model.dtype is torch.bfloat16
