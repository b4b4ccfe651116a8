"""A verifier that hangs, crashes, lies about its type or eats memory costs its own verdict and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.records import Attempt, Failure, Invalid, Reward, Scored, Split, Task, user
from posttrain.rewards import (
    InvalidBudget,
    TooManyInvalid,
    UnknownVerifier,
    VerifierProcess,
    as_reward,
    resolve_verifier,
)
from posttrain.rewards.verdict import decode, encode

TASK = Task("d", Split.TRAIN, (user("q"),), "mine", answer=5, check=lambda t, a: True)
ATTEMPT = Attempt("it is 5", evidence={"n": 1})
OFFSET = 0.25
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
GOOD = Scored(1.0, {"outcome": 1.0})


@pytest.fixture
async def vp() -> AsyncIterator[VerifierProcess]:
    async with VerifierProcess(timeout_s=20, memory_mib=1024) as process:
        yield process


def uses_a_global(task: Task, attempt: Attempt) -> float:
    return OFFSET + float(task.answer * attempt.evidence["n"])


def raises(task: Task, attempt: Attempt) -> bool:
    raise KeyError("no such\nthing")


def hangs(task: Task, attempt: Attempt) -> bool:
    while True:
        pass


def hangs_in_c(task: Task, attempt: Attempt) -> bool:
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    time.sleep(1000)
    return True


def allocates(task: Task, attempt: Attempt) -> bool:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 28))


def dies(task: Task, attempt: Attempt) -> bool:
    os._exit(3)


def segfaults(task: Task, attempt: Attempt) -> bool:
    import ctypes

    ctypes.string_at(0)
    return True


def forks(task: Task, attempt: Attempt) -> bool:
    return os.fork() != 0


def forks_and_dies(task: Task, attempt: Attempt) -> bool:
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os._exit(4)


def prints(task: Task, attempt: Attempt) -> bool:
    print("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b"\0" * 1000)
    return True


def reads_stdin(task: Task, attempt: Attempt) -> bool:
    return sys.stdin.read() == ""


BAD: dict[str, tuple[Callable[[Task, Attempt], Any], str]] = {
    "raises": (raises, "verifier raised KeyError: 'no such\\nthing' (in raises, line"),
    "exits": (lambda t, a: sys.exit(2), "verifier raised SystemExit: 2"),
    "interrupts": (lambda t, a: exec("raise KeyboardInterrupt"), "verifier raised KeyboardInterrupt"),
    "recurses": (lambda t, a: (lambda f: f(f))(lambda f: f(f)), "verifier raised RecursionError"),
    "none": (lambda t, a: None, "verifier returned None (is a return missing?)"),
    "text": (lambda t, a: "yes", "verifier returned the text 'yes'"),
    "list": (lambda t, a: [1.0], "verifier returned list"),
    "array": (lambda t, a: __import__("numpy").ones(3), "verifier returned ndarray"),
    "nan": (lambda t, a: float("nan"), "verifier returned nan"),
    "inf": (lambda t, a: -float("inf"), "verifier returned -inf"),
    "huge": (lambda t, a: 1e308, "verifier returned 1e+308"),
    "nan part": (
        lambda t, a: Scored(1.0, {"outcome": float("nan")}),
        "verifier raised ValueError: reward outcome is nan",
    ),
    "hangs": (hangs, "verifier ran past 1 s"),
    "hangs in c": (hangs_in_c, "verifier ran past 1 s"),
    "allocates": (allocates, "verifier ran out of memory"),
    "dies": (dies, "verifier process ended with exit code 3"),
    "segfaults": (segfaults, "verifier process was ended by SIGSEGV"),
    "kills": (lambda t, a: os.kill(os.getpid(), 9), "verifier process was ended by SIGKILL"),
    "forks and dies": (forks_and_dies, "verifier process ended with exit code 4"),
    "says invalid": (lambda t, a: Invalid("no\njudge"), "no judge"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_verifier_costs_its_own_verdict_only(vp: VerifierProcess, name: str) -> None:
    verifier, reason = BAD[name]
    if verifier in (hangs, hangs_in_c):
        vp.timeout_s = 1.0
    calls: list[tuple[Any, Task, Attempt]] = [
        ("number", TASK, ATTEMPT),
        (verifier, TASK, ATTEMPT),
        ("number", TASK, ATTEMPT),
    ]
    before, bad, after = await vp.score_many(calls)
    assert before == after == GOOD
    assert isinstance(bad, Invalid) and bad.reason.startswith(reason) and len(bad.reason) < 320


@pytest.mark.parametrize("verifier", [forks, prints, reads_stdin])
async def test_what_a_verifier_does_besides_does_not_confuse_its_verdicts(vp: VerifierProcess, verifier: Any) -> None:
    results = await vp.score_many([(verifier, TASK, ATTEMPT), ("number", TASK, ATTEMPT)] * 5)
    assert results[::2] == [Scored(1.0)] * 5 and results[1::2] == [GOOD] * 5


async def test_functions_of_all_kinds_are_shipped(vp: VerifierProcess) -> None:
    bonus = 0.5

    class Judge:
        def __call__(self, task: Task, attempt: Attempt) -> Scored:
            return Scored(bonus, {"process": bonus}, failure=Failure.FORMAT)

    calls: list[Any] = [uses_a_global, lambda t, a: bonus, Judge(), lambda t, a: a.answer == "it is 5", lambda t, a: 0]
    results = await vp.score_many([(v, TASK, ATTEMPT) for v in calls])
    assert [r.value for r in results if isinstance(r, Scored)] == [5.25, 0.5, 0.5, 1.0, 0.0]
    assert results[2] == Scored(0.5, {"process": 0.5}, Failure.FORMAT)
    assert results[4] == Scored(0.0, {}, Failure.WRONG)


SCRIPT = """
import asyncio
from posttrain.records import *
from posttrain.rewards import VerifierProcess

LIMIT = 3
TASK = Task("d", Split.TRAIN, (user("q"),), "mine")

def mine(task, attempt):
    return len(attempt.answer) / LIMIT

def endless(task, attempt):
    while True:
        pass

async def main():
    vp = VerifierProcess(timeout_s=60)
    print(await vp.score(mine, TASK, Attempt("abc")))
    print(vp._worker._process.pid, flush=True)
    if len(sys.argv) > 1:
        await vp.score(endless, TASK, Attempt(""))
    await vp.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


def run_python(*args: str | Path) -> str:
    run = subprocess.run([sys.executable, *args], env=ENVIRONMENT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_function_of_a_script_is_shipped(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys" + SCRIPT)
    assert run_python(script).startswith("Scored(value=1.0, parts={}, failure=None)\n")


async def test_what_can_not_be_sent_is_said(vp: VerifierProcess) -> None:
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"can not be sent to its process .*lock.*make it a plain function"):
        await vp.score(lambda t, a: lock.locked(), TASK, ATTEMPT)
    odd = await vp.score_many([("number", TASK, Attempt("5", evidence={"x": lock})), ("number", TASK, ATTEMPT)])
    assert isinstance(odd[0], Invalid) and "can not be sent" in odd[0].reason and odd[1] == GOOD
    with pytest.raises(UnknownVerifier):
        await vp.score("nubmer", TASK, ATTEMPT)


async def test_a_verifier_that_can_not_be_loaded_is_invalid(vp: VerifierProcess) -> None:
    class Broken:
        def __reduce__(self) -> Any:
            return exec, ("raise ImportError('gone')",)

        def __call__(self, task: Task, attempt: Attempt) -> bool:
            return True

    bad, good = await vp.score_many([(Broken(), TASK, ATTEMPT), ("number", TASK, ATTEMPT)])
    assert bad == Invalid("verifier could not be loaded: ImportError: gone") and good == GOOD


async def test_many_calls_keep_their_order_and_take_no_time(vp: VerifierProcess) -> None:
    attempts = [Attempt(str(i % 7)) for i in range(2000)]
    await vp.score("number", TASK, ATTEMPT)
    start = time.perf_counter()
    results = await vp.score_many([("number", TASK, a) for a in attempts])
    assert time.perf_counter() - start < 4
    assert [r.value for r in results if isinstance(r, Scored)] == [float(i % 7 == 5) for i in range(2000)]


async def test_two_callers_do_not_mix(vp: VerifierProcess) -> None:
    results = await asyncio.gather(*(vp.score(lambda t, a: float(a.answer), TASK, Attempt(str(i))) for i in range(50)))
    assert [r.value for r in results if isinstance(r, Scored)] == [float(i) for i in range(50)]


async def test_cancelling_ends_the_call_and_the_next_one_works() -> None:
    async with VerifierProcess(timeout_s=60) as vp:
        await vp.score("number", TASK, ATTEMPT)
        run = asyncio.create_task(vp.score(hangs, TASK, ATTEMPT))
        await asyncio.sleep(0.2)
        run.cancel()
        start = time.perf_counter()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await vp.score("number", TASK, ATTEMPT) == GOOD
        assert time.perf_counter() - start < 5


async def test_nothing_is_left_after_close() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        async with VerifierProcess() as vp:
            assert await vp.score("number", TASK, ATTEMPT) == GOOD
            assert vp._worker is not None
            pid = vp._worker._process.pid
        assert not os.access(f"/proc/{pid}", os.F_OK)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_worker_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys" + SCRIPT)
    with subprocess.Popen([sys.executable, script, "hang"], stdout=subprocess.PIPE, env=ENVIRONMENT) as owner:
        assert owner.stdout is not None and owner.stdout.readline().startswith(b"Scored")
        pid = int(owner.stdout.readline())
        time.sleep(0.2)
        owner.kill()
    ends = time.monotonic() + 8  # a second to notice; when its zombie is buried is up to init
    while Path(f"/proc/{pid}").exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_neither_side_loads_torch() -> None:
    modules = "posttrain.rewards, posttrain.rewards.worker, posttrain.sandbox, posttrain.tools"
    assert run_python("-c", f"import sys, {modules}; print('torch' in sys.modules)") == "False\n"


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.complex_numbers(),
)


@given(ANYTHING)
def test_any_return_value_is_a_finite_score_or_a_reason(value: Any) -> None:
    reward: Reward = as_reward(value, ATTEMPT)
    if isinstance(reward, Scored):
        assert float(value) == reward.value and abs(reward.value) <= 1e6
        assert (reward.failure is None) == (reward.value > 0)
    else:
        assert "\n" not in reward.reason
    assert decode(encode(reward)) == reward


def test_a_file_of_ones_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("def twice(x): return 2 * x\n")
    (tmp_path / "checks.py").write_text(
        "from helper_of_mine import twice\ndef judge(task, attempt): return twice(0.25)\n"
    )
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere\n")
    judge = resolve_verifier("checks.py:judge", tmp_path)
    assert judge(TASK, ATTEMPT) == 0.5
    assert resolve_verifier("checks.py:judge", tmp_path) is judge
    assert resolve_verifier("number") is not None

    async def shipped() -> Reward:
        async with VerifierProcess() as vp:
            return await vp.score(judge, TASK, ATTEMPT)

    assert asyncio.run(shipped()) == Scored(0.5)
    (tmp_path / "checks.py").write_text("def judge(task, attempt): return 0.75\n")
    assert resolve_verifier("checks.py:judge", tmp_path)(TASK, ATTEMPT) == 0.75
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nubmer", "did you mean 'number'"),
        ("zzz", "built in are exact"),
        ("none.py:judge", "there is no file"),
        ("checks.py:jugde", "defines no function 'jugde'"),
        ("checks.py:value", "defines no function 'value'"),
        ("checks.py:short", "must take (task, attempt)"),
        ("broken.py:judge", "can not be loaded: raised ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("syntax.py:judge", "can not be loaded: raised SyntaxError"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_mend(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "checks.py").write_text("def judge(task, attempt): return 1\ndef short(task): return 1\nvalue = 3\n")
    (tmp_path / "broken.py").write_text("import no_such_module_anywhere\n")
    (tmp_path / "syntax.py").write_text("def judge(:\n")
    with pytest.raises(UnknownVerifier) as caught:
        resolve_verifier(name, tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def test_too_many_invalid_attempts_stop_the_run_and_name_the_reason() -> None:
    budget = InvalidBudget(max_share=0.25, min_seen=8)
    budget.add([Invalid("slow")] * 2 + [Scored(1.0)])
    budget.add([Scored(0.0)] * 5)
    assert (budget.seen, budget.invalid) == (8, 2)
    with pytest.raises(TooManyInvalid, match=r"5 of 11 .*25%.*most often \(3x\): crashed"):
        budget.add([Invalid("crashed")] * 3)


@given(st.lists(st.lists(st.booleans())), st.floats(0, 1), st.integers(1, 20))
def test_the_budget_stops_exactly_beyond_its_share(rounds: list[list[bool]], share: float, least: int) -> None:
    budget = InvalidBudget(share, least)
    seen = bad = 0
    for row in rounds:
        seen, bad = seen + len(row), bad + sum(row)
        stop = seen >= least and bad > share * seen
        try:
            budget.add(Invalid("x") if invalid else Scored(1.0) for invalid in row)
        except TooManyInvalid:
            assert stop
            return
        assert not stop


@pytest.mark.parametrize("bad", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"memory_mib": 1}])
def test_a_bad_limit_is_an_error_that_names_it(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"verifier {next(iter(bad))}"):
        VerifierProcess(**bad)
