"""Checkpoints: what is loaded is what was saved, whatever happened in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from posttrain.records import Checkpoint
from posttrain.storage import CheckpointStore, StorageError

SRC = Path(__file__).resolve().parents[2] / "src"
META = Checkpoint("run", 0, 0, "base")


def content(step: int) -> Mapping[str, Callable[[Path], object]]:
    def write(name: str) -> Callable[[Path], object]:
        return lambda path: path.write_bytes(f"{name} {step}".encode() * 100)

    return {"adapter/weights.safetensors": write("weights"), "optimizer.bin": write("optimizer")}


def save(store: CheckpointStore, *steps: int, keep: int = 2) -> None:
    for step in steps:
        store.save(step, content(step), META, keep=keep)


def test_the_newest_checkpoint_comes_back_with_its_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.latest() is None
    save(store, 3, 12)
    found = store.latest()
    assert found is not None
    checkpoint, folder = found
    assert (checkpoint.step, checkpoint.run_id, sorted(checkpoint.files)) == (12, "run", sorted(content(12)))
    assert folder == tmp_path / "checkpoints" / "step-000012"
    assert (folder / "adapter" / "weights.safetensors").read_bytes() == b"weights 12" * 100
    assert store.load(3)[0].step == 3


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, *range(1, 6), keep=3)
    assert store.steps() == [3, 4, 5]
    assert len(list(tmp_path.iterdir())) == 3


def damage_flip(folder: Path) -> None:
    path = folder / "optimizer.bin"
    value = bytearray(path.read_bytes())
    value[7] ^= 1
    path.write_bytes(value)


def damage_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"policy_version": 0', '"policy_version": 1'))


def damage_removed(folder: Path) -> None:
    (folder / "adapter" / "weights.safetensors").unlink()


def damage_emptied(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"")


def damage_renamed(folder: Path) -> None:
    folder.rename(folder.with_name("step-000009"))


@pytest.mark.parametrize("damage", [damage_flip, damage_manifest, damage_removed, damage_emptied, damage_renamed])
def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    warnings: list[str] = []
    store = CheckpointStore(tmp_path, warn=warnings.append)
    save(store, 1, 2)
    damage(tmp_path / "step-000002")
    found = store.latest()
    assert found is not None
    assert found[0].step == 1
    (warning,) = warnings
    assert "damaged" in warning
    assert "going back" in warning
    with pytest.raises(ValueError, match="damaged"):
        store.load(store.steps()[-1])
    # The run goes on from step 1: what it saves next is the newest again.
    save(store, 2)
    assert [store.load(step)[0].step for step in store.steps()] == [1, 2]


def test_going_back_drops_the_future_that_did_not_happen(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10, 20)
    save(store, 15)
    assert store.steps() == [10, 15]


def test_a_missing_step_says_which_there_are(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 4, 5)
    with pytest.raises(ValueError, match=r"no checkpoint of step 3 .* \[4, 5\]"):
        store.load(3)


@pytest.mark.parametrize("name", ["../out", "/etc/out", "manifest.json", "", "a/../../out"])
def test_a_file_outside_the_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        CheckpointStore(tmp_path / "c").save(1, {name: lambda path: None}, META)


def test_the_last_checkpoint_can_not_be_given_up(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStore(tmp_path).save(1, content(1), META, keep=0)


def test_a_writer_that_fails_leaves_the_checkpoints_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)

    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        store.save(2, {**content(2), "last": fails}, META)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_a_process_that_died_while_it_replaced_a_checkpoint_lost_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1)
    (tmp_path / "step-000001").rename(tmp_path / ".step-000001.replaced")
    found = CheckpointStore(tmp_path).latest()
    assert found is not None
    assert found[0].step == 1
    save(store, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_a_full_disk_in_the_middle_of_a_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from posttrain.records import Checkpoint
        from posttrain.storage import CheckpointStore, StorageError
        store = CheckpointStore(Path(sys.argv[1]))
        meta = Checkpoint("run", 0, 0, "base")
        store.save(1, {"weights": lambda path: path.write_bytes(b"1" * 90_000)}, meta)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        files = {"small": lambda path: path.write_bytes(b"s"),
                 "weights": lambda path: path.write_bytes(b"2" * 90_000)}
        try:
            store.save(2, files, meta)
        except StorageError as error:
            print(error)
    """)
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "step-000002" in done.stdout
    assert "the checkpoint of step 1 is intact" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
    assert CheckpointStore(tmp_path).load(1)[1].joinpath("weights").stat().st_size == 90_000
    assert issubclass(StorageError, OSError)


WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from posttrain.records import Checkpoint
    from posttrain.storage import CheckpointStore
    store = CheckpointStore(Path(sys.argv[1]))
    found = store.latest()
    step = found[0].step if found else 0
    print("ready", flush=True)
    while True:
        step += 1
        files = {f"{i}/part": (lambda path, i=i: path.write_bytes(f"{step} {i} ".encode() * 5000) and None)
                 for i in range(4)}
        store.save(step, files, Checkpoint("run", step, step, "base"), keep=1 + step % 2)
        if step % 5 == 0:  # some steps are saved a second time
            store.save(step, files, Checkpoint("run", step, step, "base"), keep=1 + step % 2)
        print(step, flush=True)
""")


def test_kill_9_at_any_moment_never_leaves_a_checkpoint_that_loads_wrong(tmp_path: Path) -> None:
    warnings: list[str] = []
    rng = random.Random(7)
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    store = CheckpointStore(tmp_path, warn=warnings.append)
    reached = 0
    for turn in range(40):
        if turn >= 10 and reached > 5:
            break
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.25))
            os.kill(process.pid, signal.SIGKILL)
            saved = [int(line) for line in process.stdout.read().split("\n")[:-1]]
        found = store.latest()
        step = found[0].step if found else 0
        assert step >= max(saved, default=reached), "a checkpoint that was saved is gone"
        assert step >= reached
        reached = step
        for kept in store.steps():
            checkpoint, folder = store.load(kept)
            assert checkpoint.policy_version == kept
            for i in range(4):
                assert (folder / f"{i}" / "part").read_bytes() == f"{kept} {i} ".encode() * 5000
    assert warnings == []
    assert reached > 5, "the writer hardly ran: the test proves nothing"
    store.save(reached + 1, content(1), META, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == [f"step-{reached + 1:06d}"], "leftovers of killed writers stay"


def test_the_manifest_is_plain_json_with_a_hash_for_every_file(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(1, content(1), META)
    manifest = json.loads((tmp_path / "step-000001" / "manifest.json").read_text())
    assert sorted(manifest["checkpoint"]["files"]) == ["adapter/weights.safetensors", "optimizer.bin"]
    assert all(len(digest) == 64 for digest in manifest["checkpoint"]["files"].values())
