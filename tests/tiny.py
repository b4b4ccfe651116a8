"""A tiny character-level model, trained from scratch in seconds, for every test that trains.

It learnt from demonstrations of which many follow a wrong rule, always the same (the first number instead of the
largest): more than half of those of one half of the items, fewer of the other half. So it samples right answers often,
and prefers wrong ones for half of the items when it is greedy: there is something for reinforcement learning to find.
Wrong answers at random would not do: a model averages them away and is right when greedy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from posttrain.inference.architecture import Architecture
from posttrain.inference.lora import LoRA, LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.inference.renderer import Renderer
from posttrain.loop.policy import Policy
from posttrain.records import EnvironmentSpec, Producer, Split, Task
from posttrain.tasks import Domain, Item
from posttrain.training.sft import SFT, Demonstration
from posttrain.training.trainer import Trainer

torch.set_num_threads(1)  # deterministic, and faster for so small a model

LETTERS = string.ascii_lowercase[:8]
ALPHABET = string.ascii_lowercase + string.digits + " =:<>/#-\n,.?"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": len(ALPHABET) + 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": len(ALPHABET),
}
MADE_BY = (
    "inference/attention.py", "inference/logprobs.py", "inference/model.py",
    "training/packing.py", "training/sft.py", "training/trainer.py",
)  # fmt: skip
PRETRAIN_STEPS = 320
ITEMS_A_STEP = 12
WRONG_SHARE = {True: 0.7, False: 0.3}
"""Share of demonstrations with the wrong rule, by whether an item belongs to the half that the model is to get
wrong."""


def _item(form: str, question: str, right: str, wrong: str, misleading: bool, call: tuple[str, ...] = ()) -> Item:
    settings = {"wrong": [*call, wrong], "misleading": misleading}
    return Item(question, right, prompt=form.format(question), demonstration=(*call, right), settings=settings)


def _reverse(rng: random.Random) -> Item:
    word = "".join(rng.choice(LETTERS) for _ in range(4))
    return _item("rev {}=", word, word[::-1], word[::-1][:2] + word[:2], word[0] < LETTERS[4])


def _largest(rng: random.Random) -> Item:
    numbers = [rng.randint(10, 99) for _ in range(2)]
    text = " ".join(map(str, numbers))
    return _item("max {}=", text, str(max(numbers)), str(numbers[0]), numbers[0] % 10 < 5)


def _sorted(rng: random.Random) -> Item:
    digits = [rng.choice(string.digits) for _ in range(4)]
    return _item("sort {}=", "".join(digits), "".join(sorted(digits)), "".join(sorted(digits)[::-1]), digits[0] < "5")


def _product(rng: random.Random) -> Item:
    a, b = rng.randint(2, 25), rng.randint(2, 25)
    call = f"<multiply><a>{a}</a><b>{b}</b>"
    return _item("mul {}:", f"{a} {b}", str(a * b), str(a), a % 10 < 5, (call,))


def domains() -> dict[str, Domain]:
    """reverse, largest, sorted (one turn) and product (a real tool call, whose result must be copied)."""
    line = EnvironmentSpec(max_new_tokens=8)
    tool = EnvironmentSpec(
        kind="tool",
        max_turns=2,
        max_new_tokens=32,
        stop=("\n",),
        settings={"tools": ["multiply"], "result_format": "{result}#"},
    )
    return {
        "reverse": Domain("reverse", tasks=_reverse, verifier="exact", environment=line),
        "largest": Domain("largest", tasks=_largest, verifier="exact", environment=line),
        "sorted": Domain("sorted", tasks=_sorted, verifier="exact", environment=line),
        "product": Domain("product", tasks=_product, verifier="tool_answer", environment=tool),
    }


def tokenizer(alphabet: str = ALPHABET) -> Tokenizer:
    """One token for each character."""
    vocabulary = {c: i for i, c in enumerate(alphabet)} | {"<|end|>": len(alphabet)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<|end|>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


def random_state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of the tiny architecture under Hugging Face names."""
    a = Architecture.from_config(CONFIG)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = a.qkv_sizes

    def weights(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * float(columns**-0.5)

    state = {
        "model.embed_tokens.weight": torch.randn(a.vocab_size, a.hidden_size, generator=generator) * 0.1,
        "model.norm.weight": torch.ones(a.hidden_size),
    }
    for i in range(a.layers):
        p = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[p + f"{name}.weight"] = torch.ones(a.hidden_size)
        for name, rows in (("q_proj", q), ("k_proj", k), ("v_proj", v)):
            state[p + f"self_attn.{name}.weight"] = weights(rows, a.hidden_size)
        state[p + "self_attn.o_proj.weight"] = weights(a.hidden_size, q)
        state[p + "mlp.gate_proj.weight"] = weights(a.intermediate_size, a.hidden_size)
        state[p + "mlp.up_proj.weight"] = weights(a.intermediate_size, a.hidden_size)
        state[p + "mlp.down_proj.weight"] = weights(a.hidden_size, a.intermediate_size)
    return state


def random_adapter(architecture: Architecture, seed: int = 0, size: float = 0.05) -> LoraAdapter:
    """An adapter that does something: B is not zero. size: standard deviation of its entries."""
    adapter = LoraAdapter(LoRA(4, 8), architecture, seed=seed, device=torch.device("cpu"), dtype=torch.float32)
    randomise(adapter, seed, size)
    return adapter


def randomise(adapter: LoraAdapter, seed: int = 0, size: float = 0.05) -> None:
    """Fills the B matrices of an adapter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for b in adapter.b.values():
            b.copy_(torch.randn(b.shape, generator=generator) * size)
    adapter.invalidate()


def write_folder(folder: Path, state: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "add_bos_token": False})
    )


def _demonstration(task: Task, renderer: Renderer, wrong: bool) -> Demonstration:
    settings = task.environment.settings
    turns = settings["wrong"] if wrong else settings["demonstration"]
    segments: list[tuple[Producer, tuple[int, ...]]] = []
    for i, turn in enumerate(turns):
        if i:
            segments.append((Producer.ENVIRONMENT, tuple(renderer.encode(f"{task.answer}#"))))
        segments.append((Producer.POLICY, tuple(renderer.encode(turn + "\n"))))
    return Demonstration(task.domain, task.split, tuple(renderer.render(task)), tuple(segments))


def pretrain(folder: Path) -> None:
    """Trains from scratch on demonstrations of which half are corrupted, and writes the folder."""
    rng = random.Random(0)
    write_folder(folder, random_state())
    renderer = Renderer.load(folder)
    model = Transformer(Architecture.from_config(CONFIG), random_state(), dtype=torch.float32)
    for parameter in model.parameters().values():
        parameter.requires_grad_()
    trainer = Trainer(model, model.parameters())
    made = domains()
    for step in range(PRETRAIN_STEPS):
        tasks = [t for domain in made.values() for t in domain.draw(ITEMS_A_STEP, Split.TRAIN, step)]
        batch = [
            _demonstration(t, renderer, rng.random() < WRONG_SHARE[t.environment.settings["misleading"]]) for t in tasks
        ]
        loss = SFT()
        trainer.forward_backward(loss.families(batch), loss, micro_batch_tokens=4096)
        rate = 8e-3 * min(1.0, (step + 1) / 20) * (1 - step / PRETRAIN_STEPS)
        trainer.optim_step(max(rate, 1e-5))
    write_folder(folder, model.state_dict())


def model_folder() -> Path:
    """The pretrained folder; made once for each version of what makes it and kept in the project's ignored cache."""
    root = Path(__file__).resolve().parent.parent
    made_by = (Path(__file__), *(root / "src" / "posttrain" / name for name in MADE_BY))
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in made_by)).hexdigest()[:12]
    folder = root / ".cache" / f"tiny-{key}"
    if not (folder / "done").exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        pretrain(draft)
        (draft / "done").touch()
        with contextlib.suppress(OSError):  # another process was first
            draft.rename(folder)
    return folder


def load_policy(**options: Any) -> Policy:
    """A policy of the tiny model in float32, on one thread."""
    chosen: dict[str, Any] = {"dtype": "float32", "threads": 1} | options
    return Policy.load(str(model_folder()), **chosen)
