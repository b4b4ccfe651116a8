"""Reads a recipe: the defaults, what a file extends, the files in the order given, then the `--set` flags.

Invariants: every value of the result has an origin. A domain's files are relative to the recipe that names them; the
result has them relative to `base_folder`, the folder of the last file. Every error is a one-line `ConfigError`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from posttrain.config.errors import ConfigError
from posttrain.config.explain import explain
from posttrain.config.layers import Layers
from posttrain.config.origins import DEFAULT, FLAG, Lines, Origin, key_lines
from posttrain.config.recipe import Recipe

MAX_LAYERS = 16  # a chain of `extends` longer than this is a mistake, not a habit
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A checked recipe. origins: `section.key` (domains: `domain.NAME.key`) -> where its value was written."""

    recipe: Recipe
    origins: Mapping[str, Origin]
    base_folder: Path
    sources: tuple[str, ...] = ()

    def value(self, key: str) -> Any:
        """The value at a key of `origins`."""
        section, _, rest = key.partition(".")
        if section == "domain":
            name, _, rest = rest.partition(".")
            return getattr(next(d for d in self.recipe.domain if d.name == name), rest)
        return getattr(getattr(self.recipe, section), rest)


def load_recipe(paths: Sequence[str | Path], overrides: Sequence[str] = ()) -> LoadedRecipe:
    """The recipe that these files and `a.b=c` overrides ask for together. Raises `ConfigError`."""
    layers = Layers()
    files = [Path(p) for p in paths]
    base_folder = files[-1].parent if files else Path()
    for path in files:
        _add_file(layers, path, base_folder, ())
    for text in overrides:
        layers.add(parse_override(text), FLAG, {})
    try:
        recipe = Recipe.model_validate(_domains_as_list(layers.values))
    except ValidationError as error:
        raise ConfigError(explain(error, layers)) from None
    _check_files(recipe, layers.origins, base_folder)
    return LoadedRecipe(recipe, _all_origins(recipe, layers.origins), base_folder, tuple(str(p) for p in files))


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=c` as a nested table. The value is TOML; what is not TOML is a plain string."""
    key, equals, written = text.partition("=")
    names = [n.strip() for n in key.split(".")]
    if not equals or not all(names) or len(names) < 2:
        raise ConfigError(f"--set {text}: write --set section.key=value, for example --set rl.steps=10")
    value: Any = written.strip()
    try:
        parsed = tomllib.loads(f"value = {value}")
        value = parsed["value"] if len(parsed) == 1 else value
    except tomllib.TOMLDecodeError:
        pass  # a bare string
    for name in reversed(names):
        value = {name: value}
    return value  # type: ignore[no-any-return]  # at least two names were wrapped around it


def _add_file(layers: Layers, path: Path, base_folder: Path, chain: tuple[Path, ...]) -> None:
    """Adds a file and, before it, what it extends."""
    real = path.resolve()
    if real in chain:
        names = " -> ".join(p.name for p in (*chain, real))
        raise ConfigError(f"{path}: extends itself through {names}: remove one `extends`")
    if len(chain) >= MAX_LAYERS:
        raise ConfigError(f"{path}: more than {MAX_LAYERS} files extend each other: merge some")
    text = _read(path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_error(path, text, error)) from None
    lines = key_lines(text)
    parent = values.pop("extends", None)
    if parent is not None:
        if not isinstance(parent, str) or not parent:
            raise ConfigError(f"{path}:{lines[('extends',)]}: extends = {parent!r}: give the name of one TOML file")
        above = path.parent / parent
        if not above.is_file():
            raise ConfigError(f"{path}:{lines[('extends',)]}: extends = {parent!r}: there is no file {above}")
        _add_file(layers, above, base_folder, (*chain, real))
    values = _domains_by_name(values, path, lines)
    for domain in values.get("domain", {}).values():
        _rebase(domain, path.parent, base_folder)
    layers.add(values, Origin(str(path)), lines)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB: is this a recipe?")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"{path.parent} has {', '.join(near[:5])}" if near else "`posttrain init` writes one"
        raise ConfigError(f"{path}: no such recipe; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: can not be read: {reason}; give a TOML file") from None


def _syntax_error(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    message, _, position = str(error).partition(" (at ")
    line = position.removeprefix("line ").split(",")[0]
    number = line if line.isdigit() else str(len(text.splitlines()))
    return f"{path}:{number}: not valid TOML: {message[:1].lower()}{message[1:]}"


def _domains_by_name(values: dict[str, Any], path: Path, lines: Lines) -> dict[str, Any]:
    """`[[domain]]` entries keyed by name, so that layers can override one; the line table is left as it is."""
    entries = values.get("domain")
    if entries is None:
        return values
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        line = lines.get(("domain",), 1)
        raise ConfigError(f"{path}:{line}: domain: write [[domain]], with two brackets, above each domain")
    named: dict[str, Any] = {}
    for index, entry in enumerate(entries):
        name = entry.get("name")
        line = lines.get(("domain", index, "name"), lines.get(("domain", index), 1))
        if not isinstance(name, str):
            raise ConfigError(f'{path}:{line}: domain.name: each [[domain]] needs a name, like name = "capitals"')
        if name in named:
            raise ConfigError(f"{path}:{line}: domain.name = {name!r}: an earlier domain has this name: rename one")
        named[name] = entry
    return {**values, "domain": named}


def _domains_as_list(values: Mapping[str, Any]) -> dict[str, Any]:
    domains = values.get("domain")
    if not isinstance(domains, dict):
        return dict(values)
    entries = [{"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in domains.items()]
    return {**values, "domain": entries}


def _rebase(domain: dict[str, Any], folder: Path, base_folder: Path) -> None:
    """Rewrites the file names of a domain from relative to `folder` to relative to `base_folder`."""
    for key, value in list(domain.items()):
        if key == "tasks" and isinstance(value, str):
            domain[key] = _moved(value, folder, base_folder)
        elif key == "verifier" and isinstance(value, str) and ":" in value:
            file, _, function = value.rpartition(":")
            domain[key] = f"{_moved(file, folder, base_folder)}:{function}"


def _moved(name: str, folder: Path, base_folder: Path) -> str:
    if not name or Path(name).is_absolute() or folder.resolve() == base_folder.resolve():
        return name
    return os.path.relpath((folder / name).resolve(), base_folder.resolve())


def _check_files(recipe: Recipe, origins: Mapping[str, Origin], base_folder: Path) -> None:
    """The files that domains name exist: a typo is told now, not after the model was loaded."""
    for domain in recipe.domain:
        files = {"tasks": domain.tasks}
        if ":" in domain.verifier:
            files["verifier"] = domain.verifier.rpartition(":")[0]
        for key, name in files.items():
            if not (base_folder / name).is_file():
                where = origins.get(f"domain.{domain.name}.{key}", DEFAULT)
                raise ConfigError(f"{where}: domain.{domain.name}.{key}: there is no file {base_folder / name}")


def _all_origins(recipe: Recipe, written: Mapping[str, Origin]) -> dict[str, Origin]:
    """An origin for every value, in the order of the reference."""
    found = {}
    for section in type(recipe).model_fields:
        if section == "domain":
            keys = [f"domain.{d.name}.{key}" for d in recipe.domain for key in type(d).model_fields]
        else:
            keys = [f"{section}.{key}" for key in type(getattr(recipe, section)).model_fields]
        found.update({key: written.get(key, DEFAULT) for key in keys})
    return found
