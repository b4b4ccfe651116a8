"""A recipe of the tiny model with domains of its own: a whole run in seconds."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

from tests import tiny

LETTERS = string.ascii_lowercase[:8]
RECIPE = """
[run]
name = "tiny"
seed = 3

[model]
source = {model}
dtype = "float32"
threads = 1
max_context_tokens = 128

[mixture]
domains = ["reverse", "largest"]
retention = ["sorted"]

[evaluation]
items_per_domain = 30

[diagnosis]
tasks_per_domain = 6

[sft]
enabled = false

[rl]
steps = 7
groups_per_step = 6
group_size = 4
learning_rate = 1e-3
token_normaliser = 200.0
max_refill_rounds = 1
"""
DOMAIN = """
[[domain]]
name = "{name}"
tasks = "{name}.jsonl"
prompt = "{prompt}"
verifier = "{verifier}"
max_new_tokens = 8
"""


def write_recipe(folder: Path, *, verifier: str = "exact", extra: str = "") -> Path:
    """Writes recipe.toml and its three files of tasks."""
    rng = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, str]]] = {"reverse": [], "largest": [], "sorted": []}
    for _ in range(400):
        word = "".join(rng.choice(LETTERS) for _ in range(4))
        numbers = [rng.randint(10, 99) for _ in range(3)]
        digits = "".join(str(rng.randint(0, 9)) for _ in range(4))
        rows["reverse"].append({"question": word, "answer": word[::-1]})
        rows["largest"].append({"question": " ".join(map(str, numbers)), "answer": str(max(numbers))})
        rows["sorted"].append({"question": digits, "answer": "".join(sorted(digits))})
    prompts = {"reverse": "rev {question}=", "largest": "max {question}=", "sorted": "sort {question}="}
    text = RECIPE.format(model=json.dumps(str(tiny.model_folder())))
    for name, lines in rows.items():
        unique = list({line["question"]: line for line in lines}.values())
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in unique))
        text += DOMAIN.format(name=name, prompt=prompts[name], verifier=verifier if name == "reverse" else "exact")
    path = folder / "recipe.toml"
    path.write_text(text + extra)
    return path
