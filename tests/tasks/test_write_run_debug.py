"""Code that a policy wrote is tested fairly, whatever it does. Harmless programs only: here they run without a
sandbox."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from posttrain.records import EnvironmentSpec, Task
from posttrain.tasks import get_domain
from posttrain.tasks.write_run_debug import harness_source, parse_report, source_of

DOMAIN = get_domain("write_run_debug")
NONCE = "5f1d0c"


def run_tests(task: Task, text: str, nonce: str = NONCE) -> tuple[float, str]:
    harness = harness_source(task, text, NONCE)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", harness], input=nonce + "\n", capture_output=True, text=True, timeout=20
    )
    return parse_report(done.stdout, NONCE)


def doubling(tests: list[list[object]] | None = None) -> Task:
    task = DOMAIN.draw(1, "train", 0)[0]
    cases = tests if tests is not None else [[[x], 2 * x] for x in (1, 2, 3, 4)]
    spec = {**task.environment.settings, "signature": "def f(x):", "tests": cases}
    return replace(task, environment=replace(task.environment, settings=spec))


def test_reference_functions_pass_all_their_tests() -> None:
    for task in DOMAIN.draw(12, "train", 3):
        (turn,) = DOMAIN.demonstrate(task) or ("",)
        assert run_tests(task, turn) == (1.0, ""), source_of(task, turn)


def test_every_kind_is_decided_by_its_tests() -> None:
    """No constant passes them all, and there are enough of them that the one that is shown decides little."""
    for task in DOMAIN.draw(60, "train", 0):
        tests = task.environment.settings["tests"]
        assert len(tests) >= 4 and any(expected != tests[0][1] for _, expected in tests), task


def test_the_share_of_tests_that_pass_and_the_first_failure_are_reported() -> None:
    assert run_tests(doubling(), "\n    return 2 if x < 2 else 4") == (0.5, "f(3) gave 4, expected 6")


@pytest.mark.parametrize(
    ("text", "log"),
    [
        ("\n    return (", "SyntaxError: '(' was never closed"),
        ("", "IndentationError: expected an indented block"),
        ("\n    return y", "f(1) raised NameError: name 'y' is not defined"),
        ("\n    return {x}", "f(1) raised TypeError: returned a set"),
        ("\n    return [x", "SyntaxError"),
        ("\n    return 'a' * 10 ** 10", "f(1) raised MemoryError"),
        ("\n    raise SystemExit(0)", "f(1) raised SystemExit: 0"),
        ("\n    import os\n    os._exit(0)", "f(1) raised no result"),
        ("\n    print('hello')", "f(1) gave None, expected 2"),
        (" pass\n\ndel f", "KeyError"),
        ("\n    return f(x)", "f(1) raised RecursionError"),
        ("\n    return '2\\n3'", "f(1) gave '2\\n3', expected 2"),
    ],
)
def test_what_goes_wrong_in_the_code_is_its_own_fault_and_said_in_one_line(text: str, log: str) -> None:
    rate, said = run_tests(doubling(), text)
    assert rate == 0 and said.startswith(log) and "\n" not in said


def test_a_loop_without_end_is_stopped() -> None:
    assert run_tests(doubling(), "\n    while True: pass") == (0.0, "f(1) raised TimeoutError: took too long")


@pytest.mark.parametrize(
    "text",
    [
        f"\n    print('\\n{NONCE} [1.0, \"\"]', flush=True)",
        f"\n    import os\n    os.write(1, b'\\n{NONCE} [1.0, \"\"]\\n')\n    os._exit(0)",
        "\n    import os\n    for i in (1, 2, 3):\n        os.write(i, b'\\n5f1d0c [1.0, \"\"]\\n')",
        "\n    class A(int):\n        def __eq__(self, other): return True\n    return A(0)",
        "\n    import json\n    json.dumps = lambda *a, **k: '[\"value\", 2]'\n    return 0",
        "\n    import os\n    os.kill(os.getppid(), 9)",
    ],
)
def test_a_report_can_not_be_faked_by_printing_exiting_or_by_a_class_that_equals_everything(text: str) -> None:
    rate, _ = run_tests(doubling(), text)
    assert rate < 1


def test_expected_values_and_nonce_do_not_stand_in_the_program() -> None:
    task = doubling([[[i], 123456789 + i] for i in range(4)])
    harness = harness_source(task, "\n    return x", NONCE)
    assert "123456789" not in harness and NONCE not in harness


def test_numbers_compare_by_value_and_truth_values_by_kind() -> None:
    assert run_tests(doubling(), "\n    return 2.0 * x")[0] == 1
    assert run_tests(doubling([[[i], True] for i in range(4)]), "\n    return 1")[0] == 0
    assert run_tests(doubling([[[i], [i, None]] for i in range(4)]), "\n    return (x, None)")[0] == 1


def test_another_nonce_runs_nothing_and_no_report_is_no_pass() -> None:
    assert run_tests(doubling(), "\n    return 2 * x", nonce="other") == (0.0, "the tests did not finish")
    assert parse_report("", NONCE) == (0.0, "the tests did not finish")


def test_too_few_tests_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        harness_source(doubling([[[1], 2]]), "", NONCE)


def test_the_settings_say_all_that_the_environment_needs() -> None:
    task = DOMAIN.draw(1, "train", 0)[0]
    assert isinstance(task.environment, EnvironmentSpec) and task.environment.kind == "write_run_debug"
    assert {
        "function",
        "signature",
        "tests",
        "max_attempts",
        "attempt_cost",
        "feedback_format",
    } <= task.environment.settings.keys()
    assert task.prompt[0].content.endswith(task.environment.settings["signature"])
    assert task.environment.settings["feedback_format"].format(log="x").endswith(task.environment.settings["signature"])
