"""From what a recipe says (`number`, `checks.py:judge`) to a verifier."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from posttrain.rewards.checkers import BUILTIN
from posttrain.rewards.verdict import Verifier, explain


class UnknownVerifier(ValueError):
    """There is no such verifier; the message says what there is."""


def resolve_verifier(name: str, base_folder: Path | str = ".") -> Verifier:
    """A built-in verifier by name, or `FILE.py:FUNCTION` with FILE relative to `base_folder`.

    The file is run once for each version of its content. UnknownVerifier, in one line, where it, or the function,
    does not exist or does not fit.
    """
    if name in BUILTIN:
        return BUILTIN[name]
    file, colon, function = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, BUILTIN, 1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"built in are {', '.join(BUILTIN)}; your own is FILE.py:FUNCTION"
        )
        raise UnknownVerifier(f"no verifier {name!r}: {hint}")
    path = Path(base_folder, file).expanduser().resolve()
    if not path.is_file():
        raise UnknownVerifier(f"verifier {name!r}: there is no file {path}")
    verifier = getattr(_load(path, name), function, None)
    if not callable(verifier):
        raise UnknownVerifier(f"verifier {name!r}: {path.name} defines no function {function!r}")
    try:
        inspect.signature(verifier).bind(None, None)
    except TypeError as error:
        raise UnknownVerifier(f"verifier {name!r}: it must take (task, attempt): {error}") from error
    except ValueError:
        pass  # a compiled function without a signature: calling it will tell
    return cast(Verifier, verifier)


def _load(path: Path, name: str) -> ModuleType:
    content = path.read_bytes()
    module_name = f"posttrain_user_{path.stem}_{hashlib.sha256(str(path).encode() + content).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UnknownVerifier(f"verifier {name!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its neighbours may be imported, and hide nothing that is installed
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the boundary to a user's file: whatever it raises is a fault of the recipe
        del sys.modules[module_name]
        raise UnknownVerifier(
            f"verifier {name!r} can not be loaded: {explain(error).removeprefix('verifier ')}"
        ) from error
    return module
