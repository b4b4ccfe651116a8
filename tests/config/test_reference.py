"""The generated page says what the code does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from posttrain.config.explain import sections
from posttrain.config.reference import reference


def test_the_configuration_page_is_current(repository: Path) -> None:
    page = (repository / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "docs/configuration.md is stale: run `make docs`"


def test_every_key_says_what_it_does() -> None:
    silent = [f"{s}.{k}" for s, model in sections().items() for k, i in model.model_fields.items() if not i.description]
    assert silent == []


def test_the_page_can_be_written_elsewhere(tmp_path: Path) -> None:
    target = tmp_path / "new" / "configuration.md"
    subprocess.run([sys.executable, "-m", "posttrain.config.reference", str(target)], check=True, capture_output=True)
    assert target.read_text(encoding="utf-8") == reference()


def test_configuration_loads_without_torch() -> None:
    code = "import sys, posttrain.config; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
