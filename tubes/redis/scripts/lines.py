"""Lines of Lua from the files of `drivers/lua`, each with the place where it stands."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

LUA: Final = files("tubes.drivers") / "lua"
#: The source of lines that stand in no file: they say where the library is defined, and call nothing of it.
MADE: Final = ""


class Line(NamedTuple):
    """A line of a script, and where it comes from: `lib/place.lua:41`."""

    text: str
    source: str


@cache
def read(name: str) -> tuple[Line, ...]:
    """The lines of a file, without comments and blank lines."""
    bare = (re.sub(r"(^|\s)--(?!#).*", "", line).rstrip() for line in (LUA / f"{name}.lua").read_text().splitlines())
    return tuple(Line(line, f"{name}.lua:{number}") for number, line in enumerate(bare, 1) if line)


def replaced(lines: list[Line], words: dict[str, str]) -> list[Line]:
    """The lines with other text in place of some words."""
    if not words:
        return lines
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    return [Line(pattern.sub(lambda found: words[found[0]], line.text), line.source) for line in lines]
