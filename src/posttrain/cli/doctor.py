"""`posttrain doctor`: can the quickstart run here, and what to do where it can not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from posttrain.cli.exits import NO, guarded
from posttrain.cli.options import Json

MEMORY_NEEDED_BYTES = 2 << 30  # the quickstart's weights, caches and activations with some room
DISK_NEEDED_BYTES = 2 << 30  # the imported model, the checkpoints and the merged model
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """What was found. level: `ok`, `note` (slower or smaller, but works) or `fail` (the quickstart can not run)."""

    name: str
    level: Literal["ok", "note", "fail"]
    found: str
    mend: str = ""


@guarded
def doctor(as_json: Json = False) -> None:
    """Checks whether the quickstart can run here (exit code 1 where it can not), and says what to do."""
    checks = [check for probe in PROBES for check in probe()]
    good = all(check.level != "fail" for check in checks)
    if as_json:
        import json

        print(json.dumps({"ok": good, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            print(f"{check.level:<4}  {check.name:<8}  {check.found}")
            if check.mend:
                print(f"                {check.mend}")
        print("the quickstart can run here" if good else "the quickstart can not run here: see the lines marked fail")
    if not good:
        raise typer.Exit(NO)


def _python() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _torch() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of it does not load
        yield Check("torch", "fail", f"can not be loaded: {error}", "run `make install` again")
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    yield Check("torch", "ok", f"{torch.__version__} on {device}")
    from posttrain.loop.policy import BF16_SPEEDUP, available_cores, bf16_speedup

    torch.set_num_threads(available_cores())
    speedup = bf16_speedup()
    level: Literal["ok", "note"] = "ok" if speedup >= BF16_SPEEDUP else "note"
    chosen = "bfloat16" if level == "ok" else "float32"
    yield Check("bfloat16", level, f"{speedup:.1f} times as fast as float32: dtype auto takes {chosen}")


def _cores() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", "ok" if cores > 1 else "note", f"{cores}" + ("" if cores > 1 else ": expect twice the time"))


def _memory() -> Iterator[Check]:
    from posttrain.observability import available_memory_bytes

    free = available_memory_bytes()
    if free < MEMORY_NEEDED_BYTES:
        mend = f"the quickstart needs {MEMORY_NEEDED_BYTES / GIB:.0f} GiB: close programs"
        yield Check("memory", "fail", f"{free / GIB:.1f} GiB available", mend)
    else:
        yield Check("memory", "ok", f"{free / GIB:.1f} GiB available")


def _disk() -> Iterator[Check]:
    from posttrain.inference.sources import cache_folder

    for name, folder, mend in (
        ("disk", Path.cwd(), "free some, or choose another disk with --folder"),
        ("cache", cache_folder(), "free some, or set POSTTRAIN_CACHE to another disk"),
    ):
        there = next(p for p in (folder, *folder.parents) if p.exists())
        free = shutil.disk_usage(there).free
        found = f"{free / GIB:.1f} GiB free at {folder}"
        if not os.access(there, os.W_OK):
            yield Check(name, "fail", f"{folder} can not be written", mend)
        elif free < DISK_NEEDED_BYTES:
            yield Check(name, "fail", found, f"the quickstart needs {DISK_NEEDED_BYTES / GIB:.0f} GiB: {mend}")
        else:
            yield Check(name, "ok", found)


def _sandbox() -> Iterator[Check]:
    from posttrain.sandbox import probe

    found = probe()
    if found.driver is None:
        yield Check("sandbox", "fail", "untrusted code can not be isolated", "; ".join(found.problems))
    else:
        yield Check("sandbox", "ok", "; ".join(found.reasons) or found.tier, "; ".join(found.problems))


def _models() -> Iterator[Check]:
    from posttrain.inference.sources import cache_folder, list_models

    models = list_models(cache_folder())
    if models:
        yield Check("models", "ok", ", ".join(m.source for m in models))
    else:
        yield Check("models", "note", f"none in {cache_folder()}", "the first run fetches one (93 MB)")


PROBES: tuple[Callable[[], Iterator[Check]], ...] = (_python, _torch, _cores, _memory, _disk, _sandbox, _models)
