"""A tiny character-level model, trained from scratch in seconds, for every test that trains.

It knows the form of four tasks but only half of the answers (half of the demonstrations it learnt from are corrupted), so
that reinforcement learning has something to find: with clean ones there would be no signal or nothing left to learn.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from posttrain.inference.architecture import Architecture
from posttrain.inference.model import Transformer
from posttrain.inference.renderer import Renderer
from posttrain.loop.policy import Policy
from posttrain.records import EnvironmentSpec, Producer, Split
from posttrain.tasks import Domain, Item
from posttrain.training.sft import SFT, Demonstration
from posttrain.training.trainer import Trainer

ALPHABET = string.ascii_lowercase + string.digits + " =:<>/#-\n,.?"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": len(ALPHABET) + 1,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": len(ALPHABET),
}
PRETRAIN_STEPS = 110


def _reverse(rng: random.Random) -> Item:
    word = "".join(rng.choice(string.ascii_lowercase[:8]) for _ in range(4))
    return Item(word, word[::-1], prompt=f"rev {word}=", demonstration=(word[::-1],))


def _largest(rng: random.Random) -> Item:
    numbers = [rng.randint(10, 99) for _ in range(3)]
    text = " ".join(map(str, numbers))
    return Item(text, str(max(numbers)), prompt=f"max {text}=", demonstration=(str(max(numbers)),))


def _sorted(rng: random.Random) -> Item:
    digits = "".join(str(rng.randint(0, 9)) for _ in range(4))
    return Item(digits, "".join(sorted(digits)), prompt=f"sort {digits}=", demonstration=("".join(sorted(digits)),))


def _product(rng: random.Random) -> Item:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    call = f"<multiply><a>{a}</a><b>{b}</b></multiply>"
    return Item(f"{a}*{b}", a * b, prompt=f"mul {a} {b}:", demonstration=(call, str(a * b)))


def domains() -> dict[str, Domain]:
    """reverse, largest, sorted (one turn) and product (a real tool call, whose result must be copied)."""
    line = EnvironmentSpec(max_new_tokens=8)
    tool = EnvironmentSpec(
        kind="tool", max_turns=2, max_new_tokens=48, stop=("\n",), settings={"tools": ["multiply"], "result_format": "{result}#"}
    )
    return {
        "reverse": Domain("reverse", tasks=_reverse, verifier="exact", environment=line),
        "largest": Domain("largest", tasks=_largest, verifier="exact", environment=line),
        "sorted": Domain("sorted", tasks=_sorted, verifier="exact", environment=line),
        "product": Domain("product", tasks=_product, verifier="tool_answer", environment=tool),
    }


def tokenizer() -> Tokenizer:
    vocabulary = {c: i for i, c in enumerate(ALPHABET)} | {"<|end|>": len(ALPHABET)}
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
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

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


def write_folder(folder: Path, state: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "add_bos_token": False})
    )


def _corrupted(text: str, rng: random.Random) -> str:
    """One character of the answer replaced by another of its kind."""
    places = [i for i, c in enumerate(text) if c.isalnum()]
    i = rng.choice(places)
    kind = string.digits if text[i].isdigit() else string.ascii_lowercase[:8]
    return text[:i] + rng.choice([c for c in kind if c != text[i]]) + text[i + 1 :]


def pretrain(folder: Path) -> None:
    """Trains from scratch on demonstrations of which half are corrupted, and writes the folder."""
    torch.set_num_threads(1)  # deterministic, and as fast for so small a model
    rng = random.Random(0)
    write_folder(folder, random_state())
    renderer = Renderer.load(folder)
    model = Transformer(Architecture.from_config(CONFIG), random_state(), dtype=torch.float32)
    for parameter in model.parameters().values():
        parameter.requires_grad_()
    trainer = Trainer(model, model.parameters())
    made = domains()
    for step in range(PRETRAIN_STEPS):
        batch = []
        for domain in made.values():
            for task in domain.draw(24, Split.TRAIN, step):
                turns = list(domain.demonstrate(task) or ())
                segments: list[tuple[Producer, tuple[int, ...]]] = []
                if rng.random() < 0.5:
                    turns[-1] = _corrupted(turns[-1], rng)
                for i, turn in enumerate(turns):
                    segments.append((Producer.POLICY, tuple(renderer.encode(turn + "\n"))))
                    if i < len(turns) - 1:
                        segments.append((Producer.ENVIRONMENT, tuple(renderer.encode(f"{task.answer}#"))))
                batch.append(Demonstration(domain.name, Split.TRAIN, tuple(renderer.render(task)), tuple(segments)))
        loss = SFT()
        trainer.forward_backward(loss.families(batch), loss, micro_batch_tokens=4096)
        rate = 4e-3 * min(1.0, (step + 1) / 20) * (1 - step / PRETRAIN_STEPS)
        trainer.optim_step(max(rate, 1e-5))
    write_folder(folder, model.state_dict())


def model_folder() -> Path:
    """The pretrained folder; made once for each version of this file and kept in the project's ignored cache."""
    root = Path(__file__).resolve().parent.parent
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = root / ".cache" / f"tiny-{key}"
    if not (folder / "done").exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        pretrain(draft)
        (draft / "done").touch()
        try:
            draft.rename(folder)
        except OSError:  # another process was first
            pass
    return folder


def load_policy(**options: object) -> Policy:
    """A policy of the tiny model in float32, on one thread."""
    return Policy.load(str(model_folder()), **({"dtype": "float32", "threads": 1} | options))  # type: ignore[arg-type]
