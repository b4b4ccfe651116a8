"""`shell`: one command line over a small text file, run for real. Expected output is computed here, without a shell."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.lists import WORDS
from posttrain.tasks.items import Item

WORD_FILES = (
    "notes",
    "names",
    "words",
    "list",
    "items",
    "todo",
    "fruits",
    "places",
    "books",
    "songs",
    "cities",
    "plants",
)
NUMBER_FILES = ("scores", "prices", "ages", "sizes", "counts", "points", "costs", "grades")
ENDINGS = ("csv", "md", "py", "json", "html", "log", "xml", "sh")
SHOT_FILE = "log.txt"  # no item uses it
SHOTS = (
    (f"Count the lines of {SHOT_FILE}", f"wc -l < {SHOT_FILE}"),
    (f"Print the first 2 lines of {SHOT_FILE}", f"head -n 2 {SHOT_FILE}"),
    (f"Print the lines of {SHOT_FILE} that contain red", f"grep red {SHOT_FILE}"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing to do. ask and command are format strings over f (file), n (a small number), w (a word of the file),
    e (an ending).

    expected: (lines of the file, n, w) -> lines that the right command prints. content: what stands in the file;
    "names": the lines are the names of the files that have the ending.
    """

    ask: str
    command: str
    expected: Callable[[list[str], int, str], list[str]]
    content: Literal["words", "numbers", "names"] = "words"
    difficulty: float = 0.5


KINDS = (
    Kind("Count the lines of {f}", "wc -l < {f}", lambda x, n, w: [str(len(x))], difficulty=0.1),
    Kind("Print the first {n} lines of {f}", "head -n {n} {f}", lambda x, n, w: x[:n], difficulty=0.1),
    Kind(
        "Print the lines of {f} that contain {w}",
        "grep {w} {f}",
        lambda x, n, w: [a for a in x if w in a],
        difficulty=0.1,
    ),
    Kind("Print the last {n} lines of {f}", "tail -n {n} {f}", lambda x, n, w: x[-n:], difficulty=0.3),
    Kind(
        "Count the lines of {f} that contain {w}",
        "grep -c {w} {f}",
        lambda x, n, w: [str(sum(w in a for a in x))],
        difficulty=0.4,
    ),
    Kind(
        "Print the lines of {f} that do not contain {w}",
        "grep -v {w} {f}",
        lambda x, n, w: [a for a in x if w not in a],
        difficulty=0.5,
    ),
    Kind("Sort the lines of {f}", "sort {f}", lambda x, n, w: sorted(x), difficulty=0.3),
    Kind("Print the lines of {f} in reverse order", "tac {f}", lambda x, n, w: x[::-1], difficulty=0.6),
    Kind("Print the different lines of {f}, sorted", "sort -u {f}", lambda x, n, w: sorted(set(x)), difficulty=0.6),
    Kind("Print line {n} of {f}", "sed -n {n}p {f}", lambda x, n, w: [x[n - 1]], difficulty=0.7),
    Kind(
        "Print the largest number in {f}",
        "sort -n {f} | tail -n 1",
        lambda x, n, w: [str(max(map(int, x)))],
        "numbers",
        0.8,
    ),
    Kind(
        "Print the smallest number in {f}",
        "sort -n {f} | head -n 1",
        lambda x, n, w: [str(min(map(int, x)))],
        "numbers",
        0.8,
    ),
    Kind(
        "Print the sum of the numbers in {f}",
        "awk '{{s += $1}} END {{print s}}' {f}",
        lambda x, n, w: [str(sum(map(int, x)))],
        "numbers",
        0.9,
    ),
    Kind("List the files that end in .{e}", "ls *.{e}", lambda x, n, w: sorted(x), "names", 0.4),
)


def prompt_of(ask: str) -> str:
    return "".join(f"# {q}\n$ {command}\n" for q, command in SHOTS) + f"# {ask}\n$"


def generate(rng: random.Random) -> Item:
    """An item is what is asked; the file's content is drawn anew, so the same command never prints the same by rule."""
    kind = rng.choice(KINDS)
    files, lines, word, name = _files(rng, kind)
    n, ending = rng.randint(2, 6), rng.choice(ENDINGS)
    if kind.content == "names":
        lines = [f"{stem}.{ending}" for stem in rng.sample(WORD_FILES, rng.randint(2, 4))]
        files = {**files, **dict.fromkeys(lines, "x\n")}
    values = {"f": name, "n": n, "w": word, "e": ending}
    ask = kind.ask.format(**values)
    return Item(
        question=ask,
        answer="\n".join(kind.expected(lines, n, word)),
        prompt=prompt_of(ask),
        demonstration=(" " + kind.command.format(**values),),
        settings={"files": files},
        difficulty=kind.difficulty,
    )


def _files(rng: random.Random, kind: Kind) -> tuple[dict[str, str], list[str], str, str]:
    """(files, lines of the one that is asked about, a word that stands in some of its lines but not in all, its
    name)."""
    if kind.content == "numbers":
        name = rng.choice(NUMBER_FILES) + ".txt"
        lines = [str(rng.randint(1, 99)) for _ in range(rng.randint(6, 9))]
        return {name: "\n".join(lines) + "\n"}, lines, "", name
    name = rng.choice(WORD_FILES) + ".txt"
    words = rng.sample(WORDS, 5)
    lines = [" ".join(rng.sample(words, rng.randint(1, 2))) for _ in range(rng.randint(6, 9))]
    with_word, again, without = rng.sample(range(len(lines)), 3)
    lines[with_word] = lines[again] = words[0]  # so that sorting alone does not give the different lines
    lines[without] = words[1]
    return {name: "\n".join(lines) + "\n"}, lines, words[0], name


def shell() -> Domain:
    return Domain(
        "shell",
        family="terminal",
        tasks=generate,
        verifier="stdout_equals",
        environment=EnvironmentSpec(kind="shell", max_new_tokens=20),
        description="One command line over a small text file: count, pick, match, sort or sum its lines, list files.",
        right="the command ends with 0 and prints what was asked for; how it does so is its own affair",
        cheats=(
            "`echo 7` guesses a count, right in a quarter of those cases; the file is not in the prompt",
            "printing the whole file is right where the file happens to be sorted already (rare)",
        ),
        base=BASE["shell"],
    )
