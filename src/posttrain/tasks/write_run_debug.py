"""Tests a small Python function that the policy wrote: the program that does it, and how its report is read.

A task's settings: `function` (its name), `signature` (`def f(x):`, the end of the prompt), `tests` ([[arguments,
expected], ...], JSON values), `max_attempts`, `attempt_cost`, `feedback_format` (text with `{log}` that leads to the
next attempt).

The harness runs as `python3 -s -S -c HARNESS` in `ENVIRONMENT` with the nonce as the first line of its standard input.
It starts a second interpreter for the policy's code, which gets arguments and gives results; the expected values stay
in the first, which compares and reports.

What the policy's code can not do: print a report (its output goes to the harness,
which does not pass it on), read the expected values or the nonce from the command line (they are enciphered with the
nonce, which came by a pipe), exit early and pass, compare equal by a class of its own (results travel as JSON),
change the interpreter that judges.

Limits: the two interpreters run as one user, so code that reads its parent's
memory through /proc, or attaches to it as a debugger, can find the values; the sandbox must forbid that where a
policy could write it. The first failing test is shown to the policy, so special-casing it gains that one test: a task
has at least four.
Bounds: `SECONDS` for all tests together, `MEMORY_BYTES` of address space, `OUTPUT_BYTES` of
results.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from posttrain.records import Task

SECONDS = 3.0  # all tests together: they are microseconds of work, the rest is the start of an interpreter
MEMORY_BYTES = 1 << 29
OUTPUT_BYTES = 1 << 20
LOG_CHARS = 70  # about 25 tokens: it goes into a short context
MIN_TESTS = 4
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the order of a set must not differ when a killed run does a step again

# Runs in the second interpreter: reads {source, function, calls}, writes one JSON line for each call.
_CHILD = r"""
import json, os, sys
job = json.load(sys.stdin)
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_RDWR), 1)
import resource
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
limit = job["memory_bytes"] if hard == resource.RLIM_INFINITY else min(job["memory_bytes"], hard)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def say(kind, value):
    os.write(out, (json.dumps([kind, value]) + "\n").encode())
def name(error):
    return type(error).__name__ + ": " + str(error.msg if isinstance(error, SyntaxError) else error)
space = {"__name__": "solution"}
try:
    exec(compile(job["source"], "solution.py", "exec"), space)
    function = space[job["function"]]
except BaseException as error:
    say("broken", name(error))
    os._exit(0)
for arguments in job["calls"]:
    try:
        result = function(*arguments)
        try:
            json.dumps(result, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            say("error", "TypeError: returned a " + type(result).__name__)
            continue
        say("value", result)
    except BaseException as error:
        say("error", name(error))
os._exit(0)
"""

# Runs in the first interpreter; JOB and DIGEST are filled in. same(): 1 and 1.0 are equal, 1 and True are not.
_HARNESS = r"""
import base64, ctypes, hashlib, json, os, signal, subprocess, sys, threading
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: same user, yet it must not read this memory
nonce = sys.stdin.readline().strip()
if hashlib.sha256(nonce.encode()).hexdigest() != DIGEST:
    sys.exit("the first line of the standard input must be the nonce")
data = base64.b64decode(JOB)
key = hashlib.shake_256(nonce.encode()).digest(len(data))
job = json.loads(bytes(a ^ b for a, b in zip(data, key)))
tests, seconds, log_chars = job.pop("tests"), job.pop("seconds"), job.pop("log_chars")
limit, child = job.pop("output_bytes"), job.pop("child")
job["calls"] = [arguments for arguments, _ in tests]
process = subprocess.Popen([sys.executable, "-s", "-S", "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, start_new_session=True)
late = []
def kill():
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
def stop():
    late.append(True)
    kill()
timer = threading.Timer(seconds, stop)
timer.start()
try:
    process.stdin.write(json.dumps(job).encode())
    process.stdin.close()
except BrokenPipeError:
    pass
output = process.stdout.read(limit)
kill()
timer.cancel()
process.wait()
def same(a, b):
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b
results = []
for line in output.decode("utf-8", "replace").split("\n")[: len(tests)]:
    try:
        kind, value = json.loads(line)
        results.append((kind, value))
    except (ValueError, TypeError, RecursionError):
        break
passed, log = 0, ""
for i, (arguments, expected) in enumerate(tests):
    call = job["function"] + "(" + ", ".join(map(repr, arguments)) + ")"
    kind, value = results[i] if i < len(results) else ("error", "TimeoutError: took too long" if late else "no result")
    if kind == "value" and same(value, expected):
        passed += 1
    elif not log and kind == "value":
        log = call + " gave " + repr(value) + ", expected " + repr(expected)
    elif not log:
        log = str(value) if kind == "broken" else call + " raised " + str(value)
    if kind == "broken":
        break
log = " ".join(log.split())
print("\n" + nonce + " " + json.dumps([passed / len(tests), log[:log_chars]]), flush=True)
"""


def source_of(task: Task, text: str) -> str:
    """The function as it is run: the signature that ends the prompt, and what the policy wrote after it."""
    return str(task.environment.settings["signature"]) + text + "\n"


def harness_source(task: Task, text: str, nonce: str) -> str:
    """The program that tests what the policy wrote. Give it `nonce` (fresh and unguessable) as the first line of its
    input.

    text: the policy's turn, without the stop string. Raises `ValueError` for a task without at least `MIN_TESTS` tests.
    """
    settings = task.environment.settings
    if len(settings["tests"]) < MIN_TESTS:
        raise ValueError(
            f"{task.id} has {len(settings['tests'])} tests: give at least {MIN_TESTS}, as one of them is shown"
        )
    job: dict[str, Any] = {
        "source": source_of(task, text),
        "function": settings["function"],
        "tests": settings["tests"],
        "seconds": SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "output_bytes": OUTPUT_BYTES,
        "log_chars": LOG_CHARS,
        "child": _CHILD,
    }
    data = json.dumps(job).encode()
    key = hashlib.shake_256(nonce.encode()).digest(len(data))
    sealed = base64.b64encode(bytes(a ^ b for a, b in zip(data, key, strict=True))).decode()
    return f"DIGEST = {hashlib.sha256(nonce.encode()).hexdigest()!r}\nJOB = {sealed!r}\n{_HARNESS}"


def parse_report(stdout: str, nonce: str) -> tuple[float, str]:
    """(pass rate from 0 to 1, log of the first failing test or ''). Output without a report is a rate of 0: the
    harness was ended."""
    for line in reversed(stdout.splitlines()):
        if line.startswith(nonce + " "):
            rate, log = json.loads(line[len(nonce) + 1 :])
            return float(rate), str(log)
    return 0.0, "the tests did not finish"
