"""The report shows what happened at any moment of a run, and hostile text runs nothing in a reader's browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.dashboard import render
from posttrain.dashboard.report import visible

VOID = {"meta", "link", "br", "img", "input", "hr"}
ATTACK = "</pre></script><script>alert(1)</script><img src=x onerror='alert(2)'>{{ 7*7 }}\" onload=\"x"


class Page(HTMLParser):
    """Parses a report and checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(folder: Path) -> Page:
    return Page(render(folder).read_text(encoding="utf-8"))


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_report_tells_what_improved_and_what_was_decided(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    text = page(run_folder).text
    before, after = summary["training"]["before"], summary["training"]["after"]
    points, old, new = (f"{100 * x:.1f}" for x in (after - before, before, after))
    headline = f"Held-out accuracy rose by {points} points, from {old} % to {new} %"
    assert headline in text
    assert "Promoted" in text and summary["decision"]["reasons"][0] in text
    for domain in summary["domains"]:
        assert domain in text
    assert "learnable now" in text and "at zero: needs demonstrations" in text and "wrong answer" in text
    assert "Log-probability gap" in text and "2 min 51 s" in text and summary["command"] in text
    assert "<calc>17*6</calc>" in text  # shown as the policy wrote it
    assert "has not finished" not in text


def test_the_report_loads_nothing(run_folder: Path) -> None:
    found = page(run_folder)
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in found.tags}
    for _, attributes in found.tags:
        assert not {"src", "href", "srcset", "action"} & attributes.keys() or attributes.get("href") == "#main"
    assert not re.search(r"url\(|@import|https?://", render(run_folder).read_text())


def test_hostile_text_is_shown_and_never_run(run_folder: Path) -> None:
    clean = page(run_folder)
    episodes = json.loads((run_folder / "episodes.json").read_text())
    for episode in episodes:
        for turn in episode["turns"]:
            turn["text"] = ATTACK
        episode.update(domain=ATTACK, failure=ATTACK)
    (run_folder / "episodes.json").write_text(json.dumps(episodes))
    summary = json.loads((run_folder / "summary.json").read_text())
    summary["domains"][ATTACK] = summary["domains"].pop("arithmetic")
    change(
        run_folder, "summary.json", domains=summary["domains"], command=ATTACK, versions={ATTACK: ATTACK}, model=ATTACK
    )
    change(run_folder, "summary.json", cost={ATTACK: 3.0}, decision={"verdict": "refuse", "reasons": [ATTACK]})
    (run_folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "phase": ATTACK, "domain_reward": {ATTACK: 0.5}, "nll": 1})
    )
    hostile = page(run_folder)
    assert hostile.count("script") == clean.count("script") == 1
    assert hostile.count("img") == 0
    assert not [k for _, attributes in hostile.tags for k in attributes if k.startswith("on")]
    assert "<script>alert(1)</script>" in hostile.text and "{{ 7*7 }}" in hostile.text


def test_only_the_script_of_the_page_itself_may_run(run_folder: Path) -> None:
    text = render(run_folder).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy and script
    digest = base64.b64encode(hashlib.sha256(script.group(1).encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy.group(1) and "default-src 'none'" in policy.group(1)


def test_text_can_neither_hide_nor_reorder_itself() -> None:
    assert visible("a\u202eb\x00c\x1b[31m\ud800\n\tz") == "a\\u202eb\\u0000c\\u001b[31m\\ud800\n\tz"
    assert visible("naïve 日本語 🙂") == "naïve 日本語 🙂"


def test_an_empty_run_folder_says_what_is_missing(tmp_path: Path) -> None:
    text = page(tmp_path).text
    assert "This run has not finished" in text and "has no result yet" in text
    for name in (
        "summary.json",
        "metrics.jsonl",
        "diagnosis.json",
        "eval_before.json",
        "eval_after.json",
        "episodes.json",
    ):
        assert name in text


def test_a_run_that_is_still_training_shows_what_there_is(run_folder: Path) -> None:
    for name in ("summary.json", "eval_after.json"):
        (run_folder / name).unlink()
    lines = (run_folder / "metrics.jsonl").read_text()
    (run_folder / "metrics.jsonl").write_text(lines[: len(lines) - 40])  # killed while it wrote
    text = page(run_folder).text
    assert "eval_after.json is missing" in re.sub(r"\s+", " ", text)
    assert "1 of 48 lines are no complete rows" in text
    assert "arithmetic" in text and "36.7 %" in text  # from the evaluation before
    assert "Mean reward" in text and "learnable now" in text


@pytest.mark.parametrize("name", ["summary.json", "diagnosis.json", "eval_before.json", "episodes.json"])
@pytest.mark.parametrize("content", ["", "{", "[1, 2]" * 2, "null", '"text"', "\ufffd\x00", "[" * 3000])
def test_a_damaged_file_is_named_and_the_rest_is_shown(run_folder: Path, name: str, content: str) -> None:
    (run_folder / name).write_text(content)
    assert f"{name} " in page(run_folder).text.split("Where the time went")[0]


def test_a_step_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    rows = [{"step": s, "phase": "rl", "reward_mean": r} for s, r in ((0, 0.1), (1, 0.2), (1, 0.9))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    assert "Mean reward: from 0.1 to 0.9 over 2 points" in render(tmp_path).read_text()


def test_a_refusal_and_a_doubt_are_said_in_words(run_folder: Path) -> None:
    change(run_folder, "summary.json", decision={"verdict": "refuse", "reasons": ["retention fell"]})
    assert "The champion stays." in page(run_folder).text
    change(run_folder, "summary.json", decision={"verdict": "inconclusive", "reasons": []})
    assert "Not sure enough either way" in page(run_folder).text
    change(run_folder, "summary.json", training={"before": 0.3, "after": 0.32, "n": 30, "interval": [-0.1, 0.14]})
    assert "did not surely change" in page(run_folder).text


def test_a_folder_that_is_not_there_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run folder"):
        render(tmp_path / "absent")


def test_nothing_but_the_report_is_left_in_the_folder(run_folder: Path) -> None:
    before = {p.name for p in run_folder.iterdir()}
    render(run_folder)
    render(run_folder)
    assert {p.name for p in run_folder.iterdir()} == before | {"report.html"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = {
    "summary.json": [
        "training",
        "retention",
        "domains",
        "decision",
        "cost",
        "versions",
        "goals",
        "run_minutes",
        "seed",
        "command",
    ],
    "diagnosis.json": ["domains", "thresholds"],
    "eval_before.json": ["by_domain"],
}
PARTS = [
    "before",
    "after",
    "n",
    "interval",
    "role",
    "verdict",
    "reasons",
    "failures",
    "pass_rate",
    "learnable",
    "a",
    "accuracy",
]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_shape_of_the_files_stops_a_report(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run")
    part = st.dictionaries(
        st.sampled_from(PARTS), JSON | st.dictionaries(st.sampled_from(PARTS), JSON, max_size=3), max_size=4
    )
    for name, keys in KEYS.items():
        (folder / name).write_text(
            json.dumps(data.draw(st.dictionaries(st.sampled_from(keys), JSON | part, max_size=6)))
        )
    number = st.integers(-3, 10**20) | st.floats()
    row = st.fixed_dictionaries(
        {"step": number}, optional={"phase": JSON, "nll": number, "learning_rate": JSON, "domain_reward": JSON | part}
    )
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(r) for r in data.draw(st.lists(row, max_size=6))))
    turn = st.fixed_dictionaries({"producer": JSON, "text": JSON})
    episode = st.fixed_dictionaries(
        {"task_id": JSON, "domain": JSON, "when": st.sampled_from(["before", "after", 3])},
        optional={"turns": st.lists(turn | JSON, max_size=3) | JSON, "reward": JSON, "failure": JSON},
    )
    (folder / "episodes.json").write_text(json.dumps(data.draw(st.lists(episode | JSON, max_size=4))))
    page(folder)
