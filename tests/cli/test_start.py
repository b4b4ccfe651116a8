"""What starting costs and loads: help answers at once, importing the library is cheap, deciding needs no torch."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import posttrain

HEAVY = ("torch", "numpy", "transformers", "pydantic", "pyarrow", "jinja2", "safetensors", "tokenizers")


def loaded_by(code: str) -> set[str]:
    """The heavy modules that are loaded after this code."""
    code = f"{code}\nimport sys; print(' '.join(m for m in {HEAVY} if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def cpu_seconds(*command: str) -> float:
    """The least processor time of five starts: what else runs on the machine must not matter."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_answers_within_its_time_and_loads_nothing_heavy() -> None:
    assert cpu_seconds("-m", "posttrain", "--help") <= 0.3
    code = "import sys; sys.argv = ['posttrain', '--help']\nfrom posttrain.cli.main import main\n"
    assert loaded_by(code + "try: main()\nexcept SystemExit: pass") == set()


def test_importing_the_library_is_cheap() -> None:
    assert cpu_seconds("-c", "import posttrain") <= 0.2
    assert loaded_by("import posttrain") == set()


@pytest.mark.parametrize(
    "room", ["records", "config", "scheduling", "tasks", "rewards", "sandbox", "tools", "dashboard"]
)
def test_what_decides_or_describes_needs_no_torch(room: str) -> None:
    assert not loaded_by(f"import posttrain.{room}") & {"torch", "transformers"}


def test_every_public_name_is_there_once_it_is_used() -> None:
    missing = [name for name in posttrain.__all__ if getattr(posttrain, name, None) is None]
    assert missing == [] and set(posttrain.__all__) <= set(dir(posttrain))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Polisy'"):
        _ = posttrain.Polisy
    assert not hasattr(posttrain, "HeldOutLeak")  # public names are those of __all__, not all of records
