"""Two evaluations compare item by item, and what could not be judged is counted, not guessed."""

from __future__ import annotations

import json

import pytest

from posttrain.evaluation import EvalResult, ItemResult, compare, passed
from posttrain.records import Failure, Scored


def result(**domains: str) -> EvalResult:
    """One character an item: 1 right, 0 wrong, x no verdict."""
    items = []
    for domain, marks in domains.items():
        for index, mark in enumerate(marks):
            score = None if mark == "x" else float(mark)
            failure = {"1": None, "0": Failure.WRONG, "x": "sandbox died"}[mark]
            items.append(ItemResult(f"{domain}/dev/{index}", domain, score, mark == "1", failure, "an answer", 0.1))
    return EvalResult(tuple(items))


def test_a_pair_without_a_verdict_leaves_both_sides_and_is_counted() -> None:
    change = compare(result(add="0011x1"), result(add="011x11"), {"add"}, set()).domains["add"]
    assert (change.n, change.total, change.invalid_before, change.invalid_after) == (4, 6, 1, 1)
    assert change.before and change.after and change.change
    assert (change.before.value, change.after.value, change.change.value) == (0.5, 0.75, 0.25)


def test_the_order_of_evaluation_changes_nothing() -> None:
    before, after = result(add="0011001", read="0101"), result(add="0111011", read="1101")
    turned = EvalResult(tuple(reversed(after.items)))
    assert compare(before, after, {"add", "read"}, set()) == compare(before, turned, {"add", "read"}, set())


def test_roles_are_means_over_domains() -> None:
    comparison = compare(
        result(add="0000", read="00000000", facts="1111", extra="01"), result(add="1111", read="00000000", facts="1110",
        extra="11"), {"add", "read"}, {"facts"},
    )  # fmt: skip
    assert comparison.training.change and comparison.retention and comparison.retention.change
    assert (comparison.training.before, comparison.training.after, comparison.training.change.value) == (0.0, 0.5, 0.5)
    assert comparison.training.n == 12 and comparison.retention.change.value == -0.25
    assert comparison.domains["extra"].role == "other"


def test_a_domain_without_a_pair_is_named_and_not_averaged_away() -> None:
    comparison = compare(result(add="01", read="xx"), result(add="11", read="11"), {"add", "read"}, set())
    assert comparison.training.unmeasured == ("read",) and comparison.domains["read"].change is None
    assert comparison.training.invalid_share == 0.5
    assert comparison.retention is None


def test_other_tasks_or_roles_are_errors_that_name_them() -> None:
    with pytest.raises(
        ValueError, match=r"1 tasks only before and 0 only after \(first: add/dev/2\): evaluate both on the same"
    ):
        compare(result(add="011"), result(add="01"), {"add"}, set())
    with pytest.raises(ValueError, match="domain walk has no evaluated task; evaluated are: add"):
        compare(result(add="01"), result(add="01"), {"add"}, {"walk"})
    with pytest.raises(ValueError, match="both a training and a retention"):
        compare(result(add="01"), result(add="01"), {"add"}, {"add"})
    with pytest.raises(ValueError, match="no training domain"):
        compare(result(add="01"), result(add="01"), set(), {"add"})
    moved = EvalResult((ItemResult("add/dev/0", "sub", 1.0, True),))
    with pytest.raises(ValueError, match="one domain"):
        compare(result(add="1"), moved, {"add"}, set())


def test_an_evaluation_survives_its_file() -> None:
    first = result(add="01x1", facts="xx")
    text = json.dumps(first.to_json(), allow_nan=False)
    assert EvalResult.from_json(json.loads(text)) == first
    assert first.by_domain["add"].accuracy == pytest.approx(2 / 3) and first.by_domain["add"].invalid == 1
    assert first.by_domain["facts"].accuracy is None and first.invalid == 3
    assert first.macro and first.macro.value == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="upgrade posttrain"):
        EvalResult.from_json({**first.to_json(), "format_version": 9})


def test_a_file_can_not_claim_what_its_items_do_not_show() -> None:
    forged = result(add="00").to_json()
    forged["by_domain"]["add"]["accuracy"] = 1.0
    assert EvalResult.from_json(forged).by_domain["add"].accuracy == 0.0


def test_impossible_items_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        ItemResult("a", "add", float("nan"), False)
    with pytest.raises(ValueError, match="without a verdict"):
        ItemResult("a", "add", None, True)
    with pytest.raises(ValueError, match="twice"):
        EvalResult((ItemResult("a", "add", 1.0, True), ItemResult("a", "add", 0.0, False)))


def test_the_summary_rows_hold_what_the_report_reads() -> None:
    rows = compare(result(add="0011", facts="11"), result(add="0111", facts="11"), {"add"}, {"facts"}).to_json()
    json.dumps(rows, allow_nan=False)
    assert rows["training"].keys() >= {"before", "after", "n", "interval"}
    assert rows["domains"]["facts"].keys() >= {
        "role",
        "before",
        "after",
        "n",
        "interval_before",
        "interval_after",
        "interval_change",
    }


def test_a_success_may_cost_a_little() -> None:
    assert passed(Scored(0.9)) and passed(Scored(1.0))
    assert not passed(Scored(0.9, failure=Failure.TRUNCATED)) and not passed(Scored(0.2))
