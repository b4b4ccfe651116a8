"""The process that verifiers run in: `python -m posttrain.rewards.worker FD MEMORY_BYTES`. Loads no torch.

Reads jobs from the socket FD: a length (8 bytes, big endian) and a pickle of (verifiers, [(which, task, attempt),
...]), where verifiers and items are pickles themselves. Answers in JSON lines of the same framing: `{"loaded":
[reason or null, ...]}`, then one verdict for each item in order, each sent before the next item starts. What a
verifier prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import socket
import struct
import sys
import threading
import time
from typing import Any

from posttrain.records import Attempt, Invalid, Reward, Task
from posttrain.rewards.verdict import Verifier, as_reward, encode, explain, one_line

_CACHED = 64  # verifiers that stay loaded
_ORPHAN_CHECK_S = 1.0


def judge(verifier: Verifier, task: Task, attempt: Attempt) -> Reward:
    """Calls a verifier; whatever it does but hang or kill the process becomes a reward."""
    try:
        return as_reward(verifier(task, attempt), attempt)
    except MemoryError:
        return Invalid("verifier ran out of memory")
    except BaseException as error:  # noqa: BLE001 - the boundary to a user's function; SystemExit is its doing too
        return Invalid(explain(error))


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(count - len(data), 1 << 20))
        if not chunk:
            raise SystemExit(0)  # whoever wanted verdicts is gone
        data += chunk
    return bytes(data)


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    sock.sendall(struct.pack(">Q", len(data)) + data)


def _load(cache: dict[bytes, Verifier], pickled: bytes) -> str | None:
    if pickled in cache:
        return None
    try:
        verifier = pickle.loads(pickled)
    except BaseException as error:  # noqa: BLE001 - the boundary to a user's code: imports and __setstate__ run here
        return one_line(f"verifier could not be loaded: {type(error).__name__}: {error}")
    cache[pickled] = verifier
    return None


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK_S)
    os._exit(1)


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes = int(sys.argv[2])
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    me = os.getpid()
    cache: dict[bytes, Verifier] = {}
    path = pickle.loads(_read_exactly(sock, struct.unpack(">Q", _read_exactly(sock, 8))[0]))
    sys.path[:] = path
    _send(sock, {"ready": True})
    while True:
        if len(cache) > _CACHED:
            cache.clear()
        verifiers, items = pickle.loads(_read_exactly(sock, struct.unpack(">Q", _read_exactly(sock, 8))[0]))
        reasons = [_load(cache, v) for v in verifiers]
        loaded = {v: cache[v] for v, reason in zip(verifiers, reasons, strict=True) if reason is None}
        _send(sock, {"loaded": reasons})
        for which, pickled in items:
            if verifiers[which] not in loaded:
                continue
            reward = judge(loaded[verifiers[which]], *pickle.loads(pickled))
            if os.getpid() != me:
                os._exit(0)  # a copy that the verifier forked has come back here: it must not answer
            _send(sock, encode(reward))


if __name__ == "__main__":
    main()
