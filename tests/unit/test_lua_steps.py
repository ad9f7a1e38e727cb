"""The files of `drivers/lua` share local variables only as the heads of the steps say.

A step is a file that other files include. The comment at its top, its head, has one or both of these lines:

    -- in: task, due?   names that the including file declares; `?`: not for each use; "nothing": none
    -- out: best        names that the step sets for the including file; the step declares them unless they are inputs
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tubes.redis.scripts.assembly import PLAIN
from tubes.redis.scripts.lines import LUA

FOLDER: Final = Path(str(LUA))
FILES: Final = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.lua"))
#: The start of every script: all other files may use the names that it sets.
STARTS: Final = ("steps/head", "steps/begin", "steps/check")
STEPS: Final = [file for file in FILES if not file.startswith(("verbs/", "lib/"))]
#: Keywords and globals of Lua and Redis. `put_all` is what `relaying` in `tubes/redis/scripts/assembly.py` adds.
LUA_NAMES: Final = frozenset(
    re.findall(
        r"\w+",
        """and break do else elseif end false for function if in local nil not or repeat return then true until while
        error ipairs math os pairs pcall redis select string struct table tonumber tostring type unpack cjson cmsgpack
        put_all""",
    )
)
_DECLARED: Final = re.compile(
    r"\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+?) (?:=|in)|\bfunction ?([\w.]*)\(([\w, ]*)"
)


class Names(NamedTuple):
    """The names of a file: those in its head, and those in its lines, including the heads of steps that it includes."""

    required: set[str]
    optional: set[str]
    outs: set[str]
    declared: set[str]
    used: set[str]


@cache
def names_of(file: str) -> Names:
    """Read the names of a file."""
    text = (FOLDER / f"{file}.lua").read_text()
    ins, outs = (
        set(re.findall(r"\w+\??", " ".join(re.findall(rf"^-- {word}: (.*)$", text, re.M)))) - {"nothing"}
        for word in ("in", "out")
    )
    declared, used, depth = set[str](), set[str](), 0
    for line in text.splitlines():
        code, _, directive = line.partition("--#")
        # A condition may follow code; other directives stand alone.
        kind, *words = [""] if code.strip() else directive.split() or [""]
        if kind == "flat":
            declared.add("task")
        elif kind in ("include", "move", "moves", "done"):
            step = {"move": "move", "moves": "moves", "done": "steps/done"}.get(kind) or words[0]
            step = step if "/" in step or step in ("move", "moves") else f"steps/{step}"
            if step not in STARTS:
                used |= names_of(step).required
                declared |= names_of(step).outs - names_of(step).required
            code = " ".join(words) if kind == "done" else code
        code = re.sub(r"(^|\s)--.*", "", re.sub(r"'(\\.|[^'])*'", "", code))
        for groups in _DECLARED.findall(code):
            declared |= set(re.findall(r"\w+", " ".join(groups)))
        for found in re.finditer(r"[{}]|(?<![.\w:])[a-z_]\w*", code):
            depth += {"{": 1, "}": -1}.get(found[0], 0)
            # In a table `name = value` is a field.
            if found[0] not in "{}" and not (depth and code[found.end() :].startswith(" = ")):
                used.add(found[0])
    optional = {name[:-1] for name in ins if name.endswith("?")}
    return Names(ins - {f"{name}?" for name in optional}, optional, outs, declared, used - LUA_NAMES)


@cache
def shared_names() -> set[str]:
    """Return the names that each script of a session may use: those of its start, and those of the library."""
    texts = [(FOLDER / f"{file}.lua").read_text() for file in FILES if file.startswith("lib/")]
    lines = re.findall(r"^local (?:function )?([\w, ]+)", "\n".join(texts), re.M)
    return set(re.findall(r"\w+", " ".join(lines))).union(*(names_of(file).outs for file in STARTS))


@pytest.mark.parametrize("file", FILES)
def test_file_uses_only_its_own_and_shared_names(file: str) -> None:
    names = names_of(file)
    shared = set[str]() if file.removeprefix("verbs/") in PLAIN else shared_names()
    assert names.used - names.declared - names.required - names.optional - shared == set()


@pytest.mark.parametrize("file", STEPS)
def test_head_is_true(file: str) -> None:
    assert re.search(r"\A(--.*\n)*-- (in|out): ", (FOLDER / f"{file}.lua").read_text()), "it has no head"
    names = names_of(file)
    assert names.required | names.optional <= names.used
    assert names.outs <= names.declared | names.required
