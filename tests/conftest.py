"""What every test shares: slow tests come last, and skips are counted, explained and, in CI, allowed or not."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

# Reproducible in CI; elsewhere each run looks at new examples. No deadline: a busy machine is not a bug.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

ALLOWED = pytest.StashKey[list[str] | None]()
SKIPPED = pytest.StashKey[Counter[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--allowed-skips", metavar="FILE", help="fail where a test is skipped for a reason that holds no line of FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--allowed-skips")
    lines = Path(file).read_text(encoding="utf-8").splitlines() if file else []
    config.stash[ALLOWED] = [s for line in lines if (s := line.strip()) and not s.startswith("#")] if file else None
    config.stash[SKIPPED] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)  # stable: the rest keeps its order


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    long = report.longrepr
    return (str(long[2]) if isinstance(long, tuple) else str(long)).removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Counts the skips, and fails the session where one is not allowed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    found = session.config.stash[SKIPPED]
    for report in reporter.stats.get("skipped", []) if reporter else []:
        found[(report.nodeid, _reason(report))] += 1
    allowed = session.config.stash[ALLOWED]
    if allowed is not None and any(not any(a in reason for a in allowed) for _, reason in found):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found, allowed = config.stash[SKIPPED], config.stash[ALLOWED]
    terminalreporter.write_line(f"skipped: {sum(found.values())}")
    for name, reason in sorted(found):
        refused = allowed is not None and not any(a in reason for a in allowed)
        terminalreporter.write_line(f"  {name}: {reason}" + ("  <- not an allowed skip" if refused else ""))


@pytest.fixture
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent
