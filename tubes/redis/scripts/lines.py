"""Lines of Lua from the files of `drivers/lua`, each with its file and line number."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

LUA: Final = files("tubes.drivers") / "lua"
#: The source of generated lines, which place definitions.
GENERATED: Final = ""


class Line(NamedTuple):
    """A line of a script, and its source, for example `lib/place.lua:41`."""

    text: str
    source: str


@cache
def read(name: str) -> tuple[Line, ...]:
    """Return the lines of a file without comments and blank lines."""
    bare = (re.sub(r"(^|\s)--(?!#).*", "", line).rstrip() for line in (LUA / f"{name}.lua").read_text().splitlines())
    return tuple(Line(line, f"{name}.lua:{number}") for number, line in enumerate(bare, 1) if line)


def replace_words(lines: list[Line], words: dict[str, str]) -> list[Line]:
    """Return the lines with some words replaced."""
    if not words:
        return lines
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    return [Line(pattern.sub(lambda found: words[found[0]], line.text), line.source) for line in lines]
