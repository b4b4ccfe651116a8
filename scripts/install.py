"""Makes `.venv` with everything posttrain needs, at the pinned versions. Called by `make install`.

Standard library only, and it parses on Python 3.8, so that an old Python gets a sentence instead of a syntax error.
Does nothing where the stamp is newer than pyproject.toml and constraints.txt. PyTorch's default wheel on Linux carries
several GB of CUDA libraries; without an NVIDIA GPU the CPU build is asked for, unless pip resolves to one already.

Environment: TORCH_INDEX=URL takes PyTorch from that index; TORCH_INDEX=default from pip's own, whatever it holds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index of CPU builds
NEEDED_BYTES = 3 * 1024**3  # the CPU installation takes 1.9 GB; pip unpacks beside it
LARGE_MB = 5.0
LAST_LINES = 30
CUDA_NEEDED_BYTES = 10 * 1024**3


class InstallError(Exception):
    """What the person can mend; printed as one line."""


def say(text: str) -> None:
    print("install: " + text, flush=True)


def python_problem(version: Any) -> Optional[str]:
    """Why this Python can not be used, or None."""
    if tuple(version[:2]) >= OLDEST:
        return None
    return (
        f"Python {version[0]}.{version[1]} is too old, posttrain needs 3.11 or newer: install one "
        "(Debian, Ubuntu: apt-get install python3.11 python3.11-venv) or name it: make install PYTHON=/path/to/python"
    )


def venv_problem() -> Optional[str]:
    """Why this Python can not make a virtual environment, or None. Debian ships the module in a package of its own."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"{name} has no {error.name} module: install it (Debian, Ubuntu: apt-get install {name}-venv), "
            "then run make install again"
        )
    return None


def has_nvidia_gpu(proc: Path = Path("/proc/driver/nvidia")) -> bool:
    return proc.exists() or shutil.which("nvidia-smi") is not None


def is_cuda_build(report: Dict[str, Any]) -> bool:
    """Whether the torch that pip's installation report names needs NVIDIA's libraries on this platform."""
    for item in report.get("install", []):
        metadata = item.get("metadata", {})
        if metadata.get("name", "").lower() != "torch":
            continue
        if "+cpu" in metadata.get("version", ""):
            return False
        needs = [need.split(";")[0] for need in metadata.get("requires_dist", []) if "extra ==" not in need]
        return any(need.lower().startswith(("nvidia", "cuda-")) for need in needs)
    return False


def torch_index(choice: str, gpu: bool, linux: bool, cuda_build: Any) -> Optional[str]:
    """The extra index to take PyTorch from, None for pip's own. `cuda_build()` asks pip, only where it matters."""
    if choice == "default":
        return None
    if choice:
        return choice
    if not linux or gpu:
        return None
    return CPU_INDEX if cuda_build() else None


def run(command: List[str], show: bool = False) -> str:
    """Runs a command and returns its output; `show` prints what a person waits for.

    `InstallError` where the command fails; its last lines are printed before.
    """
    lines = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                shown = progress_line(line) if show else None
                if shown:
                    say(shown)
        errors.seek(0)
        said = errors.read().splitlines()
    if process.returncode:
        print("\n".join(said[-LAST_LINES:]), file=sys.stderr)
        raise InstallError(
            f"`{' '.join(command[:4])} ...` failed with exit code {process.returncode}; its last lines are above. "
            "Mend that and run make install again"
        )
    return "".join(lines)


def progress_line(line: str) -> Optional[str]:
    """What of pip's output a person waits for: the large downloads and the last phase; None for the rest."""
    words = line.split()
    if words[:1] == ["Downloading"] and line.rstrip().endswith("MB)"):
        megabytes = float(words[-2].lstrip("("))
        return f"  {words[1].rsplit('/', 1)[-1]} ({megabytes:.0f} MB)" if megabytes >= LARGE_MB else None
    if line.startswith("Installing collected packages:"):
        return f"  unpacking {len(words) - 3} packages"
    return None


def pinned(name: str, constraints: Path) -> str:
    """`name==version` from the constraints file."""
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if line.lower().startswith(name.lower() + "=="):
            return line.strip()
    raise InstallError(f"{constraints.name} has no line {name}==VERSION: restore it from the repository")


def folder_bytes(folder: Path) -> int:
    """Bytes on disk of the files below `folder`; symbolic links are not followed."""
    total = 0
    for base, _, names in os.walk(str(folder)):
        for name in names:
            total += os.lstat(os.path.join(base, name)).st_size  # noqa: PTH118
    return total


def up_to_date(stamp: Path, sources: List[Path]) -> bool:
    return stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources)


def check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(str(folder)).free
    if free < needed:
        raise InstallError(
            f"{folder} has {free / 1e9:.1f} GB free and the installation needs {needed / 1e9:.1f}: "
            "make room and run make install again"
        )


def install(root: Path) -> None:
    venv, constraints = root / ".venv", root / "constraints.txt"
    stamp = venv / ".installed"
    sources = [root / "pyproject.toml", constraints]
    if up_to_date(stamp, sources):
        say(".venv is up to date")
        return
    started = time.monotonic()
    python = str(venv / "bin" / "python")
    if not Path(python).exists():
        problem = venv_problem()
        if problem:
            raise InstallError(problem)
        check_disk(root, NEEDED_BYTES)
        say("making .venv with Python " + sys.version.split()[0])
        run([sys.executable, "-m", "venv", str(venv)])
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # An old pip downloads a wheel of 900 MB only to say what is in it.
    run([*pip, "install", "--quiet", pinned("pip", constraints)])
    index = choose_torch(pip, pinned("torch", constraints))
    extra = ["--extra-index-url", index] if index else []
    say("installing the pinned packages (PyTorch is the large one)")
    run(
        [
            *pip,
            "install",
            "--progress-bar",
            "off",
            "--constraint",
            str(constraints),
            *extra,
            "--editable",
            str(root) + "[dev]",
        ],
        show=True,
    )
    stamp.write_text("made by scripts/install.py\n", encoding="utf-8")
    size = folder_bytes(venv) / 1e9
    say(f"done in {time.monotonic() - started:.0f} s, .venv takes {size:.2f} GB")


def choose_torch(pip: List[str], torch: str) -> Optional[str]:
    def cuda_build() -> bool:
        report = run(
            [*pip, "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", torch]
        )
        return is_cuda_build(json.loads(report))

    gpu = has_nvidia_gpu()
    index = torch_index(os.environ.get("TORCH_INDEX", ""), gpu, sys.platform == "linux", cuda_build)
    if index:
        say(f"PyTorch comes from {index}" + ("" if gpu else " (no NVIDIA GPU here: the CPU build saves several GB)"))
    elif gpu:
        check_disk(Path(pip[0]).parent, CUDA_NEEDED_BYTES)
    return index


def main() -> int:
    problem = python_problem(sys.version_info)
    if problem:
        print("install: " + problem, file=sys.stderr)
        return 2
    try:
        install(ROOT)
    except InstallError as error:
        print("install: " + str(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install: interrupted; run make install again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
