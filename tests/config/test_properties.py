"""Invariants of loading, for any recipe: a value is what the last layer said, and its line is where it stands."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from posttrain.config import ConfigError, load_recipe
from posttrain.config.explain import sections, toml_value
from posttrain.config.origins import key_lines, leaves

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "rl.steps": st.integers(0, 1000),
    "rl.group_size": st.integers(2, 64),
    "rl.learning_rate": st.floats(1e-6, 1),
    "run.seed": st.integers(0, 2**32 - 1),
    "sft.enabled": st.booleans(),
    "model.source": st.text(min_size=1, max_size=20),
    "evaluation.split": st.sampled_from(["dev", "sealed"]),
}
LAYERS = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=4)


def as_toml(layer: dict[str, Any], blank_lines: int) -> str:
    tables: dict[str, list[str]] = {}
    for key, value in layer.items():
        section, name = key.split(".")
        tables.setdefault(section, []).append(f"{name} = {toml_value(value)}")
    return "\n".join("\n" * blank_lines + f"[{s}]\n" + "\n".join(lines) for s, lines in tables.items()) + "\n"


@given(layers=LAYERS, blank_lines=st.integers(0, 3))
def test_the_last_layer_that_sets_a_key_wins_and_its_line_holds_the_value(
    tmp_path_factory: Any, layers: list[dict[str, Any]], blank_lines: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("layers")
    paths = []
    for number, layer in enumerate(layers):
        path = folder / f"{number}.toml"
        path.write_text(as_toml(layer, blank_lines), encoding="utf-8", newline="\n")
        paths.append(path)
    loaded = load_recipe(paths)
    for key in VALUES:
        setters = [n for n, layer in enumerate(layers) if key in layer]
        origin = loaded.origins[key]
        if not setters:
            assert str(origin) == "default"
            continue
        assert loaded.value(key) == layers[setters[-1]][key]
        assert origin.source == str(paths[setters[-1]])
        line = paths[setters[-1]].read_text(encoding="utf-8").split("\n")[origin.line - 1]
        assert line.startswith(key.split(".")[1] + " = ")


@given(text=st.text(alphabet="ab1.=-[]{}\"#\n\t ,'", max_size=60))
def test_whatever_tomllib_accepts_has_a_line_for_every_leaf(text: str) -> None:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    count = len(text.split("\n"))
    for path, _ in leaves(parsed):
        if path:
            assert 1 <= lines[path] <= count


@given(
    section=st.sampled_from(sorted(set(sections()) - {"domain"})),
    key=st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
    value=st.one_of(
        st.integers(), st.floats(), st.text(max_size=10), st.booleans(), st.lists(st.integers(), max_size=2)
    ),
)
def test_any_override_loads_or_is_refused_in_one_line_that_names_the_key(section: str, key: str, value: Any) -> None:
    known = key in sections()[section].model_fields
    try:
        load_recipe([], [f"{section}.{key}={toml_value(value)}"])
    except ConfigError as error:
        assert "\n" not in str(error) and key in str(error)
    else:
        assert known
