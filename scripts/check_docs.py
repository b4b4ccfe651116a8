"""Fails where the documentation points at nothing: a link, an anchor, a `make` target or a `posttrain` command.

Looks at every Markdown file of the repository. A command counts where it starts a line of a code block (after an
optional `$`, assignments and a path) or an inline code span.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {".venv", "runs", "build", "dist", "node_modules"}

FENCE = re.compile(r"^\s*(```|~~~)")
INLINE_CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
HTML_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
COMMAND = re.compile(r"^\s*(?:\$\s+)?(?:[A-Z_]+=\S*\s+)*(?:\S*/)?(make|posttrain)\s+(.+)$")
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)", re.MULTILINE)

Commands = Mapping[str, "Commands | None"]


def markdown_files(root: Path) -> list[Path]:
    return sorted(
        p
        for p in root.rglob("*.md")
        if not any(part.startswith(".") or part in SKIPPED_FOLDERS for part in p.relative_to(root).parts)
    )


def split_code(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """(numbered lines of prose, numbered lines of code: fenced or indented lines and inline spans)."""
    prose: list[tuple[int, str]] = []
    code: list[tuple[int, str]] = []
    fenced, indented, blank = False, False, True
    for number, line in enumerate(text.splitlines(), 1):
        # An indented block begins after a blank line; inside a paragraph or a list item, indentation means nothing.
        indented = line.startswith("    ") and (blank or indented) and not fenced
        blank = not line.strip()
        if FENCE.match(line):
            fenced = not fenced
        elif fenced or indented:
            code.append((number, line))
        else:
            code.extend((number, span) for span in INLINE_CODE.findall(line))
            prose.append((number, line))
    return prose, code


def anchors(text: str) -> set[str]:
    """The anchors that renderers give a file's headings: lower case, no punctuation, numbered where they repeat."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for _, line in split_code(text)[0]:
        found.update(HTML_ANCHOR.findall(line))
        heading = HEADING.match(line)
        if heading:
            title = LINK.sub(lambda m: m.group(0).split("]")[0].lstrip("!["), heading.group(1))
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


def link_problems(path: Path, prose: list[tuple[int, str]], shown: str) -> Iterator[str]:
    for number, line in prose:
        for target in LINK.findall(INLINE_CODE.sub(lambda m: "x" * len(m.group(0)), line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = unquote(target).partition("#")
            file = path if not name else path.parent / name
            if not file.exists():
                yield f"{shown}:{number}: {target}: no such file"
            elif anchor and file.suffix == ".md" and anchor.lower() not in anchors(file.read_text(encoding="utf-8")):
                yield f"{shown}:{number}: {target}: no such heading"


def command_problems(code: list[tuple[int, str]], targets: set[str], commands: Commands, shown: str) -> Iterator[str]:
    for number, line in code:
        match = COMMAND.match(line)
        if not match:
            continue
        words = match.group(2).split()
        if match.group(1) == "make":
            named = [w for w in words[:1] if re.fullmatch(r"[a-z][a-z-]*", w)]
            yield from (f"{shown}:{number}: make {w}: no such target" for w in named if w not in targets)
            continue
        level: Commands | None = commands
        for depth, word in enumerate(words):
            if level is None or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            if word not in level:
                yield f"{shown}:{number}: posttrain {' '.join(words[: depth + 1])}: no such command"
                break
            level = level[word]


def cli_commands(root: Path) -> Commands:
    """The command tree of the command line of the tree under check, in a process of its own."""
    code = (
        "import json, typer; from posttrain.cli.main import app\n"
        "def tree(c):\n    subs = getattr(c, 'commands', None)\n"
        "    return None if subs is None else {n: tree(s) for n, s in subs.items()}\n"
        "print(json.dumps(tree(typer.main.get_command(app))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    tree: Commands = json.loads(done.stdout)
    return tree


def check(root: Path, commands: Commands) -> list[str]:
    makefile = root / "Makefile"
    targets = set(TARGET.findall(makefile.read_text(encoding="utf-8"))) if makefile.exists() else set()
    problems: list[str] = []
    for path in markdown_files(root):
        shown = str(path.relative_to(root))
        prose, code = split_code(path.read_text(encoding="utf-8"))
        problems.extend(link_problems(path, prose, shown))
        problems.extend(command_problems(code, targets, commands, shown))
    return problems


def main() -> int:
    problems = check(ROOT, cli_commands(ROOT))
    print("\n".join(problems) or "docs: every link, make target and command exists")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
