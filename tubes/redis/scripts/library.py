"""Place the definitions of the library, `drivers/lua/lib`, that a script needs; each is in the script once.

How a place is chosen: Lua creates a function each time it runs the definition, so a call pays for it. Definitions for
lines that always run are placed at the beginning. A definition for only one slow part (`--#slow` to `--#fast`: lines
that seldom run) is placed at the beginning of that part. Definitions for several slow parts are placed in the function
`library`, which creates one of them by name. Constants of one line are copied to each place that needs them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final, TypeAlias

from tubes.redis.scripts.expansion import expand
from tubes.redis.scripts.lines import GENERATED, Line, read

#: The files of the library. Each uses only files before it.
_FILES: Final = (
    *("task", "many", "chance", "keys", "place", "bucket", "ready_list", "ready_lanes", "ready_set", "paces"),
    *("failures", "fill", "lists", "kept", "filters", "respawn", "held", "ends", "holds", "checks"),
)
_NAMES: Final = re.compile(r"(?<![.\w])\w+")
#: A declaration without a value: the script assigns the value later.
_VARIABLE: Final = re.compile(r"local \w+")
#: The scopes around a line, the outermost first: slow parts, each as the definition that contains it and its line
#: there; or `library` and the definition in it.
_Path: TypeAlias = tuple[tuple[str, int], ...]
_SHARED: Final[_Path] = (("library", 0),)


@cache
def _definitions(knobs: frozenset[str]) -> dict[str, list[Line]]:
    """Return the lines of each definition of the library for these knobs, by the first name that it defines."""
    found: dict[str, list[Line]] = {}
    for file in _FILES:
        for line in expand(read(f"lib/{file}"), knobs):
            if line.text.startswith("local ") and line.source.startswith("lib/"):
                found[_defined_names(line.text)[0]] = []
            found[next(reversed(found))].append(line)
    return found


def _defined_names(line: str) -> list[str]:
    """Return the names that a line of the library defines."""
    return re.findall(r"\w+", line.partition("=")[0].partition("(")[0].removeprefix("local ").removeprefix("function "))


@cache  # Scripts have most of their lines in common.
def _names_in(line: str) -> list[str]:
    """Return the names that a line uses, without its quoted strings, which name keys and fields."""
    return _NAMES.findall(re.sub(r"'[^']*'", "", line))


def add_definitions(lines: list[Line], knobs: frozenset[str]) -> list[Line]:
    """Return the lines of a script with the definitions that they need."""
    return _Library(_definitions(knobs), lines).lines


class _Library:
    """The definitions that a script needs from the library, and their places."""

    def __init__(self, definitions: dict[str, list[Line]], body: list[Line]) -> None:
        self._definitions: Final = definitions
        self._first_names: Final = {
            name: first for first, lines in definitions.items() for name in _defined_names(lines[0].text)
        }
        #: The places of each definition; constants that are copied have several.
        self._places: Final[dict[str, set[_Path]]] = {}
        #: The scopes that get a definition from `library`, by definition.
        self._requests: Final[dict[str, set[_Path]]] = {}
        self._arrange(body)
        self.lines: Final = [*self._definitions_at(()), *self._fill(body, "", ())]

    def _arrange(self, body: list[Line]) -> None:
        """Find a place for each definition."""
        used_at: defaultdict[str, set[_Path]] = defaultdict(set)

        def note(lines: list[Line], owner: str, place: _Path) -> None:
            for line, path in _scoped(lines, owner, place):
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
        constant = not others and len(_defined_names(first.text)) == 1 and not _VARIABLE.fullmatch(first.text)
        # A nested scope sees the definitions of its parent; in `library` a copied constant is cheaper than an upvalue.
        scope = {path: 1 if constant and path[:1] == _SHARED else 0 for path in paths}
        paths = {path for path in paths if not any(path[:n] in paths for n in range(scope[path], len(path)))}
        if len(paths) == 1 or constant:
            return paths
        if not others:  # Variables, which all scopes share.
            return {()}
        self._requests[name] = paths
        return {(*_SHARED, (name, 0))}

    def _fill(self, lines: list[Line], owner: str, place: _Path) -> list[Line]:
        """Return the lines, with definitions at the beginning of slow parts."""
        filled: list[Line] = []
        for line, path in _scoped(lines, owner, place):
            filled.append(line)
            if line.text.lstrip().startswith("--#slow"):
                filled += self._definitions_at(path)
        return filled

    def _definitions_at(self, path: _Path) -> list[Line]:
        """Return the definitions at the beginning of a slow part, of a definition in `library`, or of the script."""
        lines = [Line("local library", GENERATED)] if self._requests and not path else []
        for name, definition in self._definitions.items():
            if path in self._requests.get(name, ()):
                lines.append(Line(f"local {name} = library('{name}', meta)", GENERATED))
            elif name not in self._requests and path in self._places.get(name, ()):
                lines += self._fill(definition, name, path)
        if self._requests and not path:
            lines += [
                Line("function library(name, meta)", GENERATED),
                Line("  local call, M, ARGV = redis.call, KEYS[1], ARGV", GENERATED),
            ]
            for name in self._requests:
                (place,) = self._places[name]
                lines.append(Line(f"  if name == '{name}' then", GENERATED))
                lines += [*self._definitions_at(place), *self._fill(self._definitions[name], name, place)]
                lines.append(Line(f"  return {name} end", GENERATED))
            lines.append(Line("end", GENERATED))
        return lines


def _scoped(lines: list[Line], owner: str, path: _Path) -> Iterator[tuple[Line, _Path]]:
    """Yield each line with the scopes around it. The directives of a slow part belong to it."""
    for number, line in enumerate(lines):
        if line.text.lstrip().startswith("--#slow"):
            path = (*path, (owner, number))
        yield line, path
        if line.text.lstrip().startswith("--#fast"):
            path = path[:-1]
