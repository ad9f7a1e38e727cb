"""Reject private words in the code: `python .ci/check_words.py PATH...`.

Comments, docstrings and longer texts are checked against `docs/words.txt`, as codespell checks the pages; in Lua only
comments. In the product the names of functions, classes, parameters and attributes are checked as well.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORDS = dict(line.split("->") for line in (ROOT / "docs/words.txt").read_text().splitlines())
#: Parts of names, and better ones.
PARTS = dict.fromkeys(
    ("told", "heed", "poke", "nudge", "hasten", "rouse", "strike", "edition", "bell", "mend"), "a plain word"
)
#: Whole names, and better ones.
NAMES = {
    **dict.fromkeys(
        ("heard", "asked", "given", "gone", "shown", "met", "aside", "here", "there"),
        "a noun, or an adjective with is_",
    ),
    **dict.fromkeys(
        ("beside", "near", "within", "without", "behind", "those", "who", "whole"), "a word for an action or a thing"
    ),
    **dict.fromkeys(("meet", "beat", "ring", "rounds"), "connect, send a heartbeat, fire, round robin"),
    **dict.fromkeys(("seenport", "awaitedport"), "ReadOnlyPort, AsyncPort"),
}
#: Comments in Lua.
LUA_COMMENT = re.compile(r"(?:^|\s)--(.*)")
#: Whole names of functions that are not properties.
FUNCTIONS = dict.fromkeys(
    (
        "after", "altered", "between", "everything", "forked", "got", "growing", "kept", "known", "leased", "leaving",
        "left", "lost", "matching", "rest", "same", "soon", "synced", "turns", "until", "varied",
    ),
    "a word for an action, or a noun for a property",
)  # fmt: skip
#: Types of tokens that contain texts; from Python 3.12 on an f-string has several tokens.
STRINGS = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments, and in Python the strings that are sentences."""
    if path.suffix == ".lua":
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := LUA_COMMENT.search(line):
                yield number, found[1]
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT or (token.type in STRINGS and " " in token.string):
                for number, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + number, line


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names that a file defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr if isinstance(node, ast.Attribute) else node.id


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the functions that a file defines, without properties, which are values."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
            isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list
        ):
            yield node.lineno, node.name


def check(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the lines, the private words and better ones of a file."""
    for line, text in texts(file):
        # Words that are part of a name with underscores, or a file of Python, are not checked.
        for word in re.findall(r"(?<![:_A-Za-z])[A-Za-z]+\b(?!\.py)", text):
            if word.lower() in WORDS:
                yield line, word, WORDS[word.lower()]
    if file.suffix == ".py" and file.parts[0] in ("drivers", "tubes"):
        for line, name in names(file):
            plain = name.strip("_").lower()
            for better in [NAMES.get(plain), *((WORDS | PARTS).get(part) for part in plain.split("_"))]:
                if better is not None:
                    yield line, name, better
        for line, name in functions(file):
            if (better := FUNCTIONS.get(name.strip("_"))) is not None:
                yield line, name, better


def main(paths: list[str]) -> int:
    """Print all findings; return 1 if there are any."""
    files = [file for path in paths for file in sorted(Path(path).rglob("*")) if file.suffix in (".py", ".lua")]
    # Leave out the link to drivers/, and the mutants, which quote code.
    files = [file for file in files if file.parts[:2] not in (("tubes", "drivers"), ("tests", "mutants"))]
    found = [(file, *finding) for file in files for finding in check(file)]
    for file, line, word, better in found:
        print(f"{file}:{line}: {word} ==> {better}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
