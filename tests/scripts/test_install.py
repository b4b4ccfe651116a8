"""The installer says what is wrong in a sentence, and takes a CUDA build of PyTorch only where there is a GPU."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import install


def report(version: str, *needs: str) -> dict[str, Any]:
    return {"install": [{"metadata": {"name": "torch", "version": version, "requires_dist": list(needs)}}]}


def test_a_build_that_needs_nvidia_libraries_is_a_cuda_build() -> None:
    cublas = 'nvidia-cublas-cu12==12.8.4.1; platform_system == "Linux" and platform_machine == "x86_64"'
    assert install.is_cuda_build(report("2.13.0", "filelock", cublas))
    assert install.is_cuda_build(report("2.13.0", "cuda-bindings>=12"))
    assert not install.is_cuda_build(report("2.13.0", "filelock", 'nvidia-x; extra == "all"'))
    assert not install.is_cuda_build(report("2.13.0+cpu", cublas))
    assert not install.is_cuda_build({"install": []})


@pytest.mark.parametrize(
    ("choice", "gpu", "linux", "cuda", "expected"),
    [
        ("", False, True, True, install.CPU_INDEX),
        ("", False, True, False, None),  # already a CPU build: no other index is contacted
        ("", True, True, True, None),
        ("", False, False, True, None),
        ("https://mirror.example/cpu", False, True, True, "https://mirror.example/cpu"),
        ("default", False, True, True, None),
    ],
)
def test_which_index_pytorch_comes_from(choice: str, gpu: bool, linux: bool, cuda: bool, expected: str | None) -> None:
    assert install.torch_index(choice, gpu, linux, lambda: cuda) == expected


def test_pip_is_not_asked_where_the_answer_does_not_matter() -> None:
    def never() -> bool:
        raise AssertionError("asked")

    assert install.torch_index("", True, True, never) is None
    assert install.torch_index("default", False, True, never) is None


def test_an_old_python_gets_a_sentence() -> None:
    assert "Python 3.9 is too old, posttrain needs 3.11" in (install.python_problem((3, 9, 2)) or "")
    assert install.python_problem((3, 11, 0)) is None and install.python_problem((4, 0, 0)) is None


def test_the_installer_parses_on_python_3_8(repository: Path) -> None:
    source = (repository / "scripts" / "install.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))


def test_a_python_without_venv_is_told_the_package_to_install(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('none', name='ensurepip')\n", encoding="utf-8")
    code = "from scripts import install; print(install.venv_problem())"
    environment = {"PYTHONPATH": f"{tmp_path}:{repository}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert f"apt-get install python3.{sys.version_info[1]}-venv" in done.stdout


def test_a_second_installation_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / ".venv").mkdir()
    stamp = tmp_path / ".venv" / ".installed"
    stamp.write_text("", encoding="utf-8")
    install.install(tmp_path)
    assert "up to date" in capsys.readouterr().out
    later = stamp.stat().st_mtime + 10
    os.utime(tmp_path / "constraints.txt", (later, later))
    assert not install.up_to_date(stamp, [tmp_path / "constraints.txt"])


def test_a_failing_command_is_one_line_after_what_it_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(install.InstallError, match="exit code 3") as caught:
        install.run([sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)"])
    assert "\n" not in str(caught.value)
    assert "the reason" in capsys.readouterr().err


def test_a_full_disk_is_told_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(install.InstallError, match="make room"):
        install.check_disk(tmp_path, 2**62)


def test_only_large_downloads_are_shown() -> None:
    large = "  Downloading https://x/torch-2.13.0-cp311-manylinux.whl (190.3 MB)\n"
    assert install.progress_line(large) == "  torch-2.13.0-cp311-manylinux.whl (190 MB)"
    assert install.progress_line("  Downloading idna-3.2-py3-none-any.whl (1.1 MB)\n") is None
    assert install.progress_line("  Downloading idna-3.2-py3-none-any.whl (61 kB)\n") is None
    assert install.progress_line("Installing collected packages: a, b, c\n") == "  unpacking 3 packages"


def test_every_package_is_pinned_and_torch_without_a_local_version(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").split()
    assert all(line.count("==") == 1 for line in lines)
    assert install.pinned("torch", repository / "constraints.txt") == "torch==2.13.0"
    with pytest.raises(install.InstallError, match="has no line nothing=="):
        install.pinned("nothing", repository / "constraints.txt")
