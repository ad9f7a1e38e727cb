"""Where a script defines what it takes from the library, `drivers/lua/lib`: each definition stands once.

A script pays for a definition each time that it comes by. So what the lines need that always run stands at the
beginning, and what only one slow part needs (`--#slow` … `--#fast`: lines that seldom run) stands where that part
begins. What several slow parts need stands in the function `library`, which defines what it is asked for by name.
Constants of one line are copied to where they are needed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final, TypeAlias

from tubes.redis.scripts.expansion import expanded
from tubes.redis.scripts.lines import MADE, Line, read

#: The files of the library, in the order in which they build on each other.
_FILES: Final = (
    *("task", "many", "chance", "keys", "place", "ready_list", "ready_lanes", "ready_set", "paces", "failures"),
    *("fill", "lists", "kept", "respawn", "held", "ends", "holds", "checks"),
)
_NAMES: Final = re.compile(r"(?<![.\w])\w+")
#: What lies around a line, the outermost first: slow parts, each by the definition in which it stands and its line
#: there; or `library`, and the definition in it.
_Path: TypeAlias = tuple[tuple[str, int], ...]
_SHARED: Final[_Path] = (("library", 0),)


@cache
def _definitions(knobs: frozenset[str]) -> dict[str, list[Line]]:
    """What the library has for these knobs: the lines of each definition, by the first name that it defines."""
    found: dict[str, list[Line]] = {}
    for file in _FILES:
        for line in expanded(read(f"lib/{file}"), knobs):
            if line.text.startswith("local ") and line.source.startswith("lib/"):
                found[_defined(line.text)[0]] = []
            found[next(reversed(found))].append(line)
    return found


def _defined(line: str) -> list[str]:
    """The names that a line of the library defines."""
    return re.findall(r"\w+", line.partition("=")[0].partition("(")[0].removeprefix("local ").removeprefix("function "))


@cache  # Scripts have most of their lines in common.
def _names_in(line: str) -> list[str]:
    """The names that a line uses; what stands in quotes names keys and fields."""
    return _NAMES.findall(re.sub(r"'[^']*'", "", line))


def with_library(lines: list[Line], knobs: frozenset[str]) -> list[Line]:
    """The lines of a script, after the definitions that they need."""
    return _Library(_definitions(knobs), lines).lines


class _Library:
    """What a script takes from the library, and where it defines that."""

    def __init__(self, definitions: dict[str, list[Line]], body: list[Line]) -> None:
        self._definitions: Final = definitions
        self._first_names: Final = {
            name: first for first, lines in definitions.items() for name in _defined(lines[0].text)
        }
        #: By definition around what it stands; of a constant that is copied there are several.
        self._places: Final[dict[str, set[_Path]]] = {}
        #: By definition what asks `library` for it.
        self._asked: Final[dict[str, set[_Path]]] = {}
        self._arrange(body)
        self.lines: Final = [*self._opening(()), *self._filled(body, "", ())]

    def _arrange(self, body: list[Line]) -> None:
        """Find a place for each definition."""
        used_at: defaultdict[str, set[_Path]] = defaultdict(set)

        def note(lines: list[Line], owner: str, place: _Path) -> None:
            for line, path in _with_paths(lines, owner, place):
                for name in _names_in(line.text):
                    if (used := self._first_names.get(name, owner)) != owner:
                        used_at[used].add(path)

        note(body, "", ())
        for name in reversed(self._definitions):
            if paths := used_at[name]:
                self._places[name] = self._place(name, paths)
                for place in self._places[name]:
                    note(self._definitions[name], name, place)

    def _place(self, name: str, paths: set[_Path]) -> set[_Path]:
        first, *others = self._definitions[name]
        constant = not others and len(_defined(first.text)) == 1
        # One in another has what that has; but what `library` captures costs each call more than a constant there.
        scope = {path: 1 if constant and path[:1] == _SHARED else 0 for path in paths}
        paths = {path for path in paths if not any(path[:n] in paths for n in range(scope[path], len(path)))}
        if len(paths) == 1 or constant:
            return paths
        if not others:  # Variables: everybody has to see the same ones.
            return {()}
        self._asked[name] = paths
        return {(*_SHARED, (name, 0))}

    def _filled(self, lines: list[Line], owner: str, place: _Path) -> list[Line]:
        """The lines, with definitions where slow parts begin."""
        filled: list[Line] = []
        for line, path in _with_paths(lines, owner, place):
            filled.append(line)
            if line.text.lstrip().startswith("--#slow"):
                filled += self._opening(path)
        return filled

    def _opening(self, path: _Path) -> list[Line]:
        """What is defined at the beginning of a slow part, of a definition in `library`, or of the script."""
        lines = [Line("local library", MADE)] if self._asked and not path else []
        for name, definition in self._definitions.items():
            if path in self._asked.get(name, ()):
                lines.append(Line(f"local {name} = library('{name}', meta)", MADE))
            elif name not in self._asked and path in self._places.get(name, ()):
                lines += self._filled(definition, name, path)
        if self._asked and not path:
            lines += [
                Line("function library(name, meta)", MADE),
                Line("  local call, M, ARGV = redis.call, KEYS[1], ARGV", MADE),
            ]
            for name in self._asked:
                (place,) = self._places[name]
                lines.append(Line(f"  if name == '{name}' then", MADE))
                lines += [*self._opening(place), *self._filled(self._definitions[name], name, place)]
                lines.append(Line(f"  return {name} end", MADE))
            lines.append(Line("end", MADE))
        return lines


def _with_paths(lines: list[Line], owner: str, path: _Path) -> Iterator[tuple[Line, _Path]]:
    """Each line with what lies around it; the directive of a slow part is in it."""
    for number, line in enumerate(lines):
        if line.text.lstrip().startswith("--#slow"):
            path = (*path, (owner, number))
        yield line, path
        if line.text.lstrip().startswith("--#fast"):
            path = path[:-1]
