"""Importing a model: what is wrong with a source is one line, and no fault of the machine leaves half a model."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.inference.gguf_import import plan_gguf
from posttrain.inference.import_gguf_file import GgufFile
from posttrain.inference.import_tokenizer import build_tokenizer
from posttrain.inference.model_folder import ModelFolder, list_models
from posttrain.inference.sources import ModelSourceError, import_model


def one_line(error: pytest.ExceptionInfo[ModelSourceError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# What is wrong is refused


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("whatever", "known names"),
        ("/nowhere/m.gguf", "no such file"),
        ("./nowhere", "no such file"),
        ("", "not a model source"),
    ],
)
def test_an_unknown_source_says_what_to_write(tmp_path: Path, source: str, match: str) -> None:
    with pytest.raises(ModelSourceError, match=match) as error:
        import_model(source, cache=tmp_path)
    one_line(error)


def test_a_foreign_or_broken_file_is_one_line(tmp_path: Path, tiny: Path) -> None:
    raw = tiny.read_bytes()
    big_endian = b"GGUF" + (3).to_bytes(4, "big") + raw[8:]
    claims = b"GGUF" + (3).to_bytes(4, "little")
    texts = {
        b"": "empty",
        b"PK\x03\x04" + bytes(100): "not a GGUF file",
        os.urandom(5000): "not a GGUF file|ersion",
        big_endian: "big-endian",
        claims + (99).to_bytes(4, "little"): "not a whole|not believable",
        claims + (2**60).to_bytes(8, "little") * 2: "not believable",
        claims + (0).to_bytes(8, "little") + (1).to_bytes(8, "little") + (2**62).to_bytes(8, "little"): "not a whole",
        raw[: len(raw) // 2]: "after the end of the file",
        raw[:-1]: "after the end of the file",
        raw[:3000]: "after the end of the file",
    }
    for content, match in texts.items():
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(ModelSourceError, match=match) as error:
            import_model(str(tmp_path / "m.gguf"), cache=tmp_path / "cache")
        one_line(error)
    assert list_models(tmp_path / "cache") == []
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rope scaling"),
        (lambda w: w.add_expert_count(8), "mixture of experts"),
        (lambda w: w.add_rope_dimension_count(8), "partial rotary"),
        (lambda w: w.add_string("general.architecture", "falcon"), "architecture 'falcon'"),
        (lambda w: w.add_string("tokenizer.ggml.pre", "qwen2"), "pre-tokenizer 'qwen2'"),
        (lambda w: w.add_string("tokenizer.ggml.model", "llama"), "tokenizer 'llama'"),
        (lambda w: w.add_uint32("tokenizer.ggml.eos_token_id", 10**6), "eos_token_id"),
        (lambda w: w.add_array("tokenizer.ggml.merges", ["q zzz"]), "merge"),
        (lambda w: w.add_array("tokenizer.ggml.tokens", ["a", "a"]), "stand twice"),
        (lambda w: w.add_uint32("llama.block_count", 3), "tensors are missing"),
        (lambda w: w.add_uint32("llama.attention.head_count", 3), "do not fit|do not divide|shape"),
        (lambda w: w.add_uint32("llama.embedding_length", 2**31), "expected"),
        (lambda w: w.add_tensor("blk.0.attn_q.bias", np.zeros(4, np.float32)), "not of a plain llama"),
    ],
)
def test_a_gguf_that_would_be_converted_wrongly_is_refused(
    kit: Any, tmp_path: Path, model: Any, change: Callable[[gguf.GGUFWriter], None], match: str
) -> None:
    def replace(writer: gguf.GGUFWriter) -> None:
        kept = dict(writer.kv_data[0])
        writer.kv_data[0].clear()
        change(writer)
        writer.kv_data[0].update({k: v for k, v in kept.items() if k not in writer.kv_data[0]})

    path = kit.write_gguf(tmp_path / "m.gguf", model, change=replace)
    with pytest.raises(ModelSourceError, match=match) as error:
        import_model(str(path), cache=tmp_path / "cache")
    one_line(error)
    assert list_models(tmp_path / "cache") == []


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 1 << 20),
)
def test_no_damage_to_a_gguf_is_a_traceback(tmp_path: Path, tiny: Path, flips: list[tuple[int, int]], cut: int) -> None:
    raw = bytearray(tiny.read_bytes())
    for at, value in flips:
        raw[at] = value
    path = tmp_path / "m.gguf"
    path.write_bytes(raw[: max(cut, 1)])
    try:
        with GgufFile(path) as file:
            plan_gguf(file)
            build_tokenizer(file.metadata, str(path))
    except ModelSourceError as error:
        assert len(str(error)) < 1000


def test_a_broken_folder_is_one_line(tmp_path: Path, tiny: Path) -> None:
    made = import_model(str(tiny), cache=tmp_path / "other").path
    good = {p.name: p.read_bytes() for p in made.iterdir() if p.name != "manifest.json"}
    weights = good["model.safetensors"]
    huge = (10**12).to_bytes(8, "little")
    index = {"model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/x.safetensors"}}'}
    config = json.loads(good["config.json"])
    cases: list[tuple[dict[str, bytes | None], str]] = [
        ({"config.json": None}, "config.json: can not be read"),
        ({"config.json": b"{"}, "not JSON"),
        ({"config.json": json.dumps(config | {"model_type": "gpt2"}).encode()}, "'gpt2' is not supported"),
        ({"config.json": json.dumps(config | {"hidden_size": "x"}).encode()}, "not a number"),
        ({"config.json": json.dumps(config | {"num_hidden_layers": 9}).encode()}, "lack model.layers.2"),
        ({"config.json": json.dumps(config | {"intermediate_size": 32}).encode()}, "has shape"),
        ({"tokenizer.json": None}, "holds no tokenizer.json"),
        ({"model.safetensors": None}, "holds no model.safetensors"),
        ({"model.safetensors": weights[:-1]}, "does not fit the file"),
        ({"model.safetensors": huge + weights[8:]}, "not a whole safetensors file"),
        ({"model.safetensors": os.urandom(7)}, "not a whole safetensors file"),
        ({"model.safetensors": weights.replace(b'"F32"', b'"I64"', 1)}, "supported are"),
        (dict(index), "not a safetensors file beside it"),
    ]
    for number, (change, match) in enumerate(cases):
        folder = tmp_path / f"case{number}"
        folder.mkdir()
        for name, content in {**good, **change}.items():
            if content is not None:
                (folder / name).write_bytes(content)
        with pytest.raises(ModelSourceError, match=match) as error:
            import_model(str(folder), cache=tmp_path / "cache")
        one_line(error)
    assert list_models(tmp_path / "cache") == []


# Faults of the machine


def test_a_model_larger_than_the_disk_is_refused_before_work_starts(kit: Any, tmp_path: Path) -> None:
    rows = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize // (4 * kit.HIDDEN) + (1 << 20)
    path, hole = tmp_path / "m.gguf", len(kit.TOKENS) * kit.HIDDEN * 4
    raw = kit.write_gguf(path, kit.tiny_model()).read_bytes()
    at = raw.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 8  # name, dimension count, columns
    assert raw[at : at + 8] == len(kit.TOKENS).to_bytes(8, "little")
    path.write_bytes(raw[:at] + rows.to_bytes(8, "little") + raw[at + 8 :])
    os.truncate(path, len(raw) - hole + rows * kit.HIDDEN * 4 + (1 << 20))  # a hole: it takes no space
    with pytest.raises(ModelSourceError, match=r"needs [\d.]+ [GM]iB on disk, .* free") as error:
        import_model(str(path), cache=tmp_path / "cache")
    one_line(error)
    path.unlink()


def test_a_write_that_fails_in_the_middle_leaves_nothing(kit: Any, tmp_path: Path, big: Path) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({10 << 20}, {resource.RLIM_INFINITY}))"
    output, errors = kit.python(limit + kit.IMPORT, big, tmp_path).communicate(timeout=60)
    assert output.startswith("ERROR"), errors
    assert "nothing was kept" in output
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.06])
def test_kill_9_in_the_middle_leaves_nothing_that_a_later_start_trusts(
    kit: Any, tmp_path: Path, big: Path, delay_s: float
) -> None:
    process = kit.python(kit.IMPORT, big, tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("models/.partial-*/model.safetensors")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for made in list_models(tmp_path):  # it was faster than the signal: then it is whole
        ModelFolder.open(made.entry, verify=True)
    steps: list[str] = []
    made = import_model(str(big), cache=tmp_path, progress=lambda what, share: steps.append(what))
    assert ModelFolder.open(made.entry, verify=True) == made
    assert not list(tmp_path.glob("models/.partial*"))


def test_two_processes_that_import_at_once_do_the_work_once(kit: Any, tmp_path: Path, big: Path) -> None:
    running = [kit.python(kit.IMPORT, big, tmp_path) for _ in range(3)]
    lines = [process.communicate(timeout=90)[0].split() for process in running]
    assert len({checksum for checksum, _ in lines}) == 1
    assert sorted(worked for _, worked in lines) == ["False", "False", "True"]


def test_a_lock_that_is_never_freed_is_a_named_error(kit: Any, tmp_path: Path, tiny: Path) -> None:
    import_model(str(tiny), cache=tmp_path)
    (lock,) = (tmp_path / "locks").iterdir()
    holder = kit.python(
        "import fcntl,os,sys,time; h=open(sys.argv[1],'r+'); fcntl.flock(h, fcntl.LOCK_EX);"
        "h.write(f'{os.getpid()}\\n'); h.flush(); print('held', flush=True); time.sleep(60)",
        lock,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ModelSourceError, match=f"process {holder.pid} .*0.3 s"):
            import_model(str(tiny), cache=tmp_path, force=True, lock_wait_s=0.3)
    finally:
        holder.kill()
        holder.communicate()
