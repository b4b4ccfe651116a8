"""A domain of one's own: what a user gives, what comes out, and what stays the same."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.records import Attempt, EnvironmentSpec, Split, Task, assistant, user
from posttrain.tasks import Domain, DomainError, Item, get_domain

ROWS = [{"country": f"Land {i}", "capital": f"City {i}", "answer": str(i)} for i in range(60)]


def right_capital(task: Task, attempt: Attempt) -> bool:
    return attempt.answer.strip() == str(task.answer)


def sums(rng: random.Random) -> dict[str, Any]:
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    return {"a": a, "b": b, "answer": a + b}


def own(tasks: Any = ROWS, **more: Any) -> Domain:
    return Domain(
        "own",
        **{"tasks": tasks, "verifier": right_capital, "prompt": "The capital of {country} is", "answer": "capital"}
        | more,
    )


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_every_file_gives_the_same_tasks_as_the_rows_themselves(tmp_path: Path, ending: str) -> None:
    domain = own(write(tmp_path / f"capitals.{ending}", ROWS))
    assert [t.id for s in Split for t in domain.tasks(s)] == [t.id for s in Split for t in own().tasks(s)]
    task = domain.tasks("train")[0]
    assert task.prompt[0].content.startswith("The capital of Land") and task.answer.startswith("City")
    assert task.provenance.source == f"file:capitals.{ending}" and task.verifier == "own:right_capital"


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfquestion,answer\r\nWhy?,so\r\n")
    domain = Domain("own", tasks=str(path), verifier="exact", dev_share=0, sealed_share=0)
    assert [(t.prompt[0].content, t.answer) for t in domain.tasks()] == [("Why?", "so")]


def test_splits_hold_all_items_once() -> None:
    domain = own()
    questions = [t.prompt[0].content for s in Split for t in domain.tasks(s)]
    assert len(questions) == len(set(questions)) == len(ROWS)
    assert all(t.split is s for s in Split for t in domain.tasks(s)) and all(domain.tasks(s) for s in Split)


def test_the_wording_around_a_question_does_not_move_it_to_another_split() -> None:
    there = {t.answer: t.split for s in Split for t in own().tasks(s)}
    other = {t.answer: t.split for s in Split for t in own(prompt="Name the capital of {country}:").tasks(s)}
    assert there == other


@given(st.text(min_size=1).filter(lambda s: s.strip()), st.sampled_from([" ", "  ", "\n"]))
def test_case_and_blanks_do_not_put_one_question_on_two_sides(text: str, blank: str) -> None:
    asked = {text, blank + text, text + blank, text.replace(" ", "  ")}
    splits = {
        split for one in asked for split in Split if Domain("own", tasks=[Item(one, 1)], verifier="exact").tasks(split)
    }
    assert len(splits) == 1


@given(st.integers(0, 2**31), st.sampled_from(list(Split)), st.integers(1, 30))
def test_draw_is_pure_and_gives_distinct_items_of_its_split(seed: int, split: Split, n: int) -> None:
    domain = Domain("own", tasks=sums, verifier="number", prompt="{a} + {b} =")
    first = domain.draw(n, split, seed)
    domain.sample(3)
    assert [t.id for t in domain.draw(n, split, seed)] == [t.id for t in first]
    assert len({t.id for t in first}) == n and {t.split for t in first} == {split}


def test_excluded_tasks_are_not_drawn() -> None:
    for domain in (own(), Domain("own", tasks=sums, verifier="number", prompt="{a} + {b} =")):
        first = domain.draw(10, "train", 1)
        again = domain.draw(10, "train", 1, exclude=frozenset(t.id for t in first))
        assert not {t.id for t in first} & {t.id for t in again}


@pytest.mark.parametrize("tasks", [ROWS, lambda rng: {"country": rng.randint(0, 10**6), "capital": "x"}])
def test_sample_goes_on_where_it_stopped_and_starts_over_with_the_domain(tasks: Any) -> None:
    one, two = own(tasks), own(tasks)
    first, second = one.sample(5), one.sample(5)
    assert [t.id for t in first + second] == [t.id for t in [*two.sample(5), *two.sample(5)]]
    assert not {t.id for t in first} & {t.id for t in second}
    assert [t.id for t in one.sample(5, seed=7)] == [t.id for t in two.draw(5, "train", 7)]


def test_a_list_is_seen_as_a_whole_before_a_task_comes_again() -> None:
    domain = own()
    size = len(domain.tasks())
    two_passes = [t.id for _ in range(size * 2) for t in domain.sample(1)]
    assert len(set(two_passes[:size])) == len(set(two_passes[size:])) == size
    assert two_passes[:size] != two_passes[size:]


def test_ready_tasks_keep_their_split_and_take_the_verifier_of_the_domain() -> None:
    given = [Task("own", split, (user(f"{split} {i}"),), "?", i) for split in Split for i in range(4)]
    domain = Domain("own", tasks=given, verifier="number")
    assert [t.answer for t in domain.tasks("sealed")] == [0, 1, 2, 3]
    assert {t.verifier for s in Split for t in domain.tasks(s)} == {"number"}


def test_a_generator_of_ready_tasks_can_not_choose_their_split() -> None:
    domain = Domain(
        "own", tasks=lambda rng: Task("own", Split.TRAIN, (user(str(rng.random())),), "?", 1), verifier="number"
    )
    assert {t.split for t in domain.draw(20, "dev", 0)} == {Split.DEV}


def test_demonstrations_come_from_a_column_a_function_or_nowhere() -> None:
    rows = [{**row, "how": f" {row['capital']}"} for row in ROWS]
    task = own(rows, demonstrations="how").tasks()[0]
    assert own(rows, demonstrations="how").demonstrate(task) == (f" {task.answer}",)
    assert own(demonstrations=lambda t: f" {t.answer}.").demonstrate(task) == (f" {task.answer}.",)
    assert own().demonstrate(own().tasks()[0]) is None


def test_several_answer_columns_make_a_dict_and_none_makes_none() -> None:
    assert set(own(answer=["capital", "answer"]).tasks()[0].answer) == {"capital", "answer"}
    assert own(answer=None).tasks()[0].answer is None


def test_environment_render_and_card_are_what_was_given() -> None:
    domain = own(
        environment=EnvironmentSpec(max_new_tokens=5), render="chat", description="Capitals.", licence="CC0-1.0"
    )
    task = domain.tasks()[0]
    assert task.environment.max_new_tokens == 5 and task.render == "chat" and task.provenance.licence == "CC0-1.0"
    card = json.loads(json.dumps(domain.card().to_json()))
    assert {"name", "family", "version", "splits", "verifier", "licence"} <= card.keys()
    assert sum(s["tasks"] for s in card["splits"].values()) == len(ROWS)


def test_the_same_tasks_in_every_process_whatever_the_hash_seed_locale_and_time_zone() -> None:
    code = (
        "import random\nfrom posttrain.tasks import Domain, get_domain, list_domains\n"
        "rows = [{'question': f'q {i}', 'answer': i} for i in range(40)]\n"
        "domains = [Domain('own', tasks=rows, verifier='number'), *map(get_domain, list_domains())]\n"
        "for d in domains:\n    print(*(t.id for t in d.draw(4, 'dev', 3) + d.sample(2, 'dev')))\n"
    )

    def run(seed: str, zone: str, locale: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale}
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    assert run("0", "UTC", "C") == run("4242", "Asia/Tokyo", "tr_TR.UTF-8")


def test_tasks_imports_without_torch_and_without_pyarrow() -> None:
    code = "import sys, posttrain.tasks; print([m for m in ('torch', 'pyarrow', 'transformers') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_domain_from_a_file_takes_a_few_lines(tmp_path: Path) -> None:
    write(tmp_path / "capitals.csv", ROWS)

    def right(task: Task, attempt: Attempt) -> bool:
        return str(task.answer) in attempt.answer

    domain = Domain(
        "capitals",
        tasks=tmp_path / "capitals.csv",
        verifier=right,
        prompt="The capital of {country} is",
        answer="capital",
    )
    task = domain.sample(1)[0]
    assert callable(domain.verifier) and domain.verifier(task, Attempt(f" {task.answer}."))


def one(answer: Any = 1, **more: Any) -> Any:
    return {"question": "q", "answer": answer} | more


BAD: list[tuple[str, dict[str, Any]]] = [
    ("has no tasks", {"tasks": []}),
    ("no column 'capitol' .* did you mean 'capital'", {"answer": "capitol"}),
    ("no column 'contry' .* did you mean 'country'", {"prompt": "{contry}"}),
    ("prompt '{country'", {"prompt": "{country"}),
    ("name the columns", {"prompt": "The capital of {} is"}),
    ("name the columns", {"prompt": "The capital of {0} is"}),
    ("does not fit the row", {"prompt": "{country:d}"}),
    ("does not fit the row", {"prompt": "{country.x}"}),
    ("give prompt=", {"prompt": None}),
    ("task 1 of 'own': no column 'country'", {"tasks": [ROWS[0], {"capital": "x"}]}),
    ("task 0 of 'own': column 'capital' is empty", {"tasks": [{"country": "a", "capital": None}]}),
    ("another answer", {"tasks": [{"country": "a", "capital": "b"}, {"country": "a", "capital": "c"}]}),
    ("must be JSON", {"tasks": [{"country": "a", "capital": {1, 2}}]}),
    ("must be JSON", {"tasks": [{"country": "a", "capital": [float("nan")]}]}),
    ("a list; a task is a row", {"tasks": [["a"]]}),
    ("give rows, a path, or a function", {"tasks": 7}),
    ("give rows, a path, or a function", {"tasks": {"country": "a"}}),
    ("the question is empty", {"tasks": [Item("  ", 1)]}),
    ("of domain 'other'", {"tasks": [Task("other", Split.TRAIN, (user("q"),), "?")]}),
    ("in dev and in train", {"tasks": [Task("own", s, (user("q"),), "?") for s in (Split.TRAIN, Split.DEV)]}),
    ("verifier of 'own' is 3", {"verifier": 3}),
    ("verifier of 'own' is ''", {"verifier": ""}),
    ("render 'html'", {"render": "html"}),
    ("must be >= 0 and leave room", {"dev_share": 0.9, "sealed_share": 0.2}),
    ("must be >= 0 and leave room", {"dev_share": float("nan")}),
    ("raised KeyError", {"tasks": lambda rng: ROWS[0]["nothing"]}),
    ("different items for the same", {"tasks": lambda rng: {"country": random.random(), "capital": "a"}}),
    ("a NoneType; a task is a row", {"tasks": lambda rng: None}),
    ("a demonstration is a text", {"demonstrations": "how", "tasks": [{"country": "a", "capital": "b", "how": 3}]}),
]


@pytest.mark.parametrize(("message", "more"), BAD, ids=[m for m, _ in BAD])
def test_bad_input_is_one_line_that_says_what_to_change(message: str, more: dict[str, Any]) -> None:
    with pytest.raises(DomainError, match=message) as error:
        own(**more)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["", "a/b", "Über", "a b", "../x", "x" * 100, "x\n"])
def test_a_name_that_could_not_stand_in_an_id_or_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(DomainError, match="use lower-case letters"):
        Domain(name, tasks=[one()], verifier="exact")


FILES: list[tuple[str, bytes, str]] = [
    ("a.jsonl", b"", "has no rows"),
    ("a.csv", b"", "has no rows"),
    ("a.csv", b"question,answer\n", "has no rows"),
    ("a.jsonl", b'{"question": "a", "answer": 1}\n{"question": \n', "line 2: not a JSON object"),
    ("a.jsonl", b'{"question": "a", "answer": 1}\n\n[1]\n', "line 3: a list"),
    ("a.jsonl", b'{"question": "a", "answer": NaN}\n', "line 1: .*NaN"),
    ("a.jsonl", b"[" * 100_000, "line 1: not a JSON object"),
    ("a.jsonl", b'{"question": "a", "answer": 1}\n{"question": "\xff", "answer": 1}\n', "line 2: not UTF-8"),
    (
        "a.jsonl",
        b'{"question": "a", "answer": 1}\n{"question": "b", "anser": 1}\n',
        "line 2: no column 'answer' .*'anser'",
    ),
    ("a.csv", b"question,answer\na,1\nb,1,2\n", "line 3: not 2 columns"),
    ("a.csv", b"question,answer\na,1\nb\n", "line 3: not 2 columns"),
    ("a.csv", b"question,answer\na,\n", "line 2: column 'answer' is empty"),
    ("a.csv", b'question,answer\n"a,1\n', "line 2: unexpected end"),
    ("a.csv", b"question,question,answer\na,b,1\n", "stands twice"),
    ("a.parquet", b"no parquet", "not a Parquet file"),
    ("a.xlsx", b"", "tasks are read from .jsonl, .csv, .parquet"),
]


@pytest.mark.parametrize(("name", "content", "message"), FILES, ids=[f"{n}: {m}" for n, _, m in FILES])
def test_a_broken_file_is_one_line_with_the_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DomainError, match=message) as error:
        Domain("own", tasks=tmp_path / name, verifier="exact")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_a_folder_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name, message in (("nothing.csv", "No such file"), ("folder.csv", "is not a file")):
        with pytest.raises(DomainError, match=message):
            Domain("own", tasks=tmp_path / name, verifier="exact")


def test_a_generator_that_runs_dry_ends_with_a_message_instead_of_never() -> None:
    dry = Domain("own", tasks=lambda rng: Item(str(rng.randint(0, 5)), 1), verifier="number")
    with pytest.raises(DomainError, match=r"only . different new train items"):
        dry.draw(12, "train", 0)
    same = Domain("own", tasks=lambda rng: Item("always this", 1), verifier="number")
    absent = next(s for s in Split if s is not same.sample(1, _split_of(same))[0].split)
    with pytest.raises(DomainError, match=f"gave no new {absent} items"):
        same.draw(1, absent, 0)


def _split_of(domain: Domain) -> Split:
    for split in Split:
        try:
            return domain.draw(1, split, 0)[0].split
        except DomainError:
            continue
    raise AssertionError("an item stands in no split")


def test_asking_for_too_many_or_for_nonsense_is_an_error() -> None:
    domain = own()
    with pytest.raises(DomainError, match="100 were asked for"):
        domain.draw(100, "train", 0)
    for n in (0, -1, True, 1.5):
        with pytest.raises(DomainError, match="whole number"):
            domain.sample(n)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="no split 'tain'; did you mean 'train'"):
        domain.draw(1, "tain", 0)
    with pytest.raises(DomainError, match="use draw"):
        get_domain("arithmetic").tasks()
    empty = Domain("own", tasks=[Task("own", Split.DEV, (user("q"), assistant("a")), "?", 1)], verifier="number")
    with pytest.raises(DomainError, match="no train tasks"):
        empty.sample(1)
