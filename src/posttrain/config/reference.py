"""Writes docs/configuration.md from the models: `python -m posttrain.config.reference [FILE]`."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic_core import PydanticUndefined

from posttrain.config.explain import allowed_values, sections, toml_value

INTRODUCTION = """\
# Configuration

A recipe is one TOML file. Every key has a default, so a recipe holds only what it changes. This page is written from
the code by `make docs`; do not edit it.

- A value comes from the first of: the last `--set section.key=value`, the last recipe on the command line, what it
  extends, the default.
- `extends = "other.toml"` at the top of a recipe puts it on top of another one. Tables merge key by key, lists are
  replaced, `[[domain]]` entries merge by their name.
- A value after `--set` is TOML; what is not TOML is a plain string: `--set rl.steps=4`,
  `--set 'mixture.domains=["larger"]'`, `--set domain.capitals.max_new_tokens=8`.
- An unknown key is an error that names the nearest one. `posttrain config show RECIPE --why` prints each value and
  where it came from.
- Files that a domain names are relative to the recipe that names them.
"""

HEADER = """

| key | default | values | what it does |
|---|---|---|---|
"""


def reference() -> str:
    """The page, as Markdown."""
    parts = [INTRODUCTION]
    for name, model in sections().items():
        title = "[[domain]]" if name == "domain" else f"[{name}]"
        parts.append(f"\n## {title}\n\n{(model.__doc__ or '').strip()}{HEADER}")
        for key, info in model.model_fields.items():
            default = info.get_default(call_default_factory=True, validated_data={})
            shown = "required" if default is PydanticUndefined else f"`{toml_value(default)}`"
            cells = [f"`{key}`", shown, allowed_values(info), info.description or ""]
            parts.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n")
    return "".join(parts)


def main() -> int:
    root = Path(__file__).resolve().parents[3]
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "docs" / "configuration.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(reference(), encoding="utf-8")
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
