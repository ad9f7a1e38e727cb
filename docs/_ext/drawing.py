"""The diagram of the states, drawn from `MOVES`."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from math import hypot

from tubes.drivers.moves import MOVES, State

Point = tuple[float, float]
#: The states before and after a transition. A new task has None before it; a done task leaves the tube.
Transition = tuple[State | None, State]

_WIDTH, _HEIGHT = 900, 660
_CENTRE = (450.0, 330.0)
# Half of the sizes of a state's box.
_BOX = (62.0, 25.0)
_GAP = 13.0
_LINE = 19.0
_POSITIONS: dict[State, Point] = {
    State.DELAYED: (450, 130),
    State.READY: (200, 330),
    State.TAKEN: (700, 330),
    State.BURIED: (450, 540),
}
# Offsets from a state: where the arrows of new tasks begin, and where the arrows of removed tasks end.
_ENTRIES: dict[State, Point] = {State.READY: (-140, 0), State.DELAYED: (-210, 0)}
_EXITS: dict[State, Point] = {
    State.DELAYED: (210, 0),
    State.READY: (-80, 130),
    State.TAKEN: (140, 0),
    State.BURIED: (210, 0),
}
# Whether a state's loop is above it (-1) or below, and where along the box.
_LOOPS: dict[State, tuple[float, int]] = {
    State.DELAYED: (0, -1),
    State.READY: (-25, -1),
    State.TAKEN: (25, -1),
    State.BURIED: (0, 1),
}
# The position of a label along its arrow, as a fraction, if it is not in the middle.
_LABELS: dict[Transition, float] = {
    (State.READY, State.TAKEN): 0.3,
    (State.TAKEN, State.READY): 0.3,
    (State.DELAYED, State.BURIED): 0.72,
}


def transitions() -> dict[Transition, list[str]]:
    """Return the reasons for each transition, in the order of the table."""
    found: dict[Transition, list[str]] = defaultdict(list)
    for why, rows in MOVES.items():
        for source, move in rows.items():
            found[source, move.to].append(why)
    return dict(found)


def draw() -> str:
    """Return the diagram as SVG that takes its colours from the page."""
    found = transitions()
    parts = [
        f'<svg class="states" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="states-title">',
        '<title id="states-title">The states of a task, and why it moves from one to the next</title>',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>',
    ]
    for transition, reasons in found.items():
        parts += _draw_transition(transition, reasons, (transition[1], transition[0]) in found)
    for state, (x, y) in _POSITIONS.items():
        parts.append(
            f'<rect class="state" x="{x - _BOX[0]}" y="{y - _BOX[1]}" width="{2 * _BOX[0]}" height="{2 * _BOX[1]}" '
            f'rx="12"/><text class="name" x="{x}" y="{y + 5}">{state.name.lower()} {escape(state.letter)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _draw_transition(transition: Transition, reasons: list[str], is_two_way: bool) -> list[str]:
    source, target = transition
    if source is target:
        return _loop(target, reasons)
    if source is None:
        centre, (dx, dy) = _POSITIONS[target], _ENTRIES[target]
        start = (centre[0] + dx, centre[1] + dy)
        dot = f'<circle class="dot" cx="{start[0]}" cy="{start[1]}" r="6"/>'
        return [dot, *_arrow(transition, start, _border(centre, start), reasons, 0.45)]
    if target is State.DONE:
        centre, (dx, dy) = _POSITIONS[source], _EXITS[source]
        end = (centre[0] + dx, centre[1] + dy)
        dot = (
            f'<circle class="end" cx="{end[0]}" cy="{end[1]}" r="8"/>'
            f'<circle class="dot" cx="{end[0]}" cy="{end[1]}" r="4"/>'
        )
        return [dot, *_arrow(transition, _border(centre, end), _towards(end, centre, 8), reasons, 0.55)]
    one, other = _POSITIONS[source], _POSITIONS[target]
    nx, ny = _normal(one, other)
    shift = _GAP if is_two_way else 0.0
    one, other = (one[0] + nx * shift, one[1] + ny * shift), (other[0] + nx * shift, other[1] + ny * shift)
    start, end = _border(one, other, (nx * shift, ny * shift)), _border(other, one, (nx * shift, ny * shift))
    return _arrow(transition, start, end, reasons, _LABELS.get(transition, 0.5), is_two_way)


def _arrow(
    transition: Transition, start: Point, end: Point, reasons: list[str], along: float, is_two_way: bool = False
) -> list[str]:
    nx, ny = _normal(start, end)
    if not is_two_way and (start[0] - _CENTRE[0]) * nx + (start[1] - _CENTRE[1]) * ny < 0:
        nx, ny = -nx, -ny  # Outwards.
    if abs(nx) < 0.1 and not is_two_way:
        nx, ny = 0.0, -1.0  # Above the line.
    x = start[0] + (end[0] - start[0]) * along + nx * 10
    y = start[1] + (end[1] - start[1]) * along + ny * 10
    anchor = "middle" if abs(nx) < 0.3 else "start" if nx > 0 else "end"
    line = f'<path class="way" marker-end="url(#tip)" d="M{_format_point(start)}L{_format_point(end)}"/>'
    # The first line's baseline: all lines above the arrow, below it, or as many above as below.
    below = y + 5 - (len(reasons) - 1) * _LINE * 0.5
    first = y + 2 - (len(reasons) - 1) * _LINE if ny < -0.9 else y + 12 if ny > 0.9 else below
    return [line, _label(transition, (x, first), anchor, reasons)]


def _loop(state: State, reasons: list[str]) -> list[str]:
    (cx, cy), (dx, side) = _POSITIONS[state], _LOOPS[state]
    x, y = cx + dx, cy + side * _BOX[1]
    top = y + side * 46
    line = f'<path class="way" marker-end="url(#tip)" d="M{x - 16} {y}C{x - 34} {top} {x + 34} {top} {x + 16} {y}"/>'
    first = top + 2 - (len(reasons) - 1) * _LINE if side < 0 else top + 12
    return [line, _label((state, state), (x, first), "middle", reasons)]


def _label(transition: Transition, at: Point, anchor: str, reasons: list[str]) -> str:
    """Return a label. `data-way` has both states, so that tests can compare the drawing with the table."""
    source, target = transition
    lines = "".join(
        f'<tspan x="{at[0]:.0f}" dy="{_LINE if number else 0:.0f}">{escape(why)}</tspan>'
        for number, why in enumerate(reasons)
    )
    name = escape(f"{source.letter if source else ''}>{target.letter}")
    return f'<text class="why" data-way="{name}" x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="{anchor}">{lines}</text>'


def _normal(one: Point, other: Point) -> Point:
    """Return the point to the left of the path from one to the other, on a canvas whose y grows downwards."""
    dx, dy = other[0] - one[0], other[1] - one[1]
    long = hypot(dx, dy)
    return dy / long, -dx / long


def _border(centre: Point, towards: Point, shift: Point = (0.0, 0.0)) -> Point:
    """Return the point at which a line from inside a box leaves it. `shift`: its distance from the box's centre."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    steps: list[float] = []
    for delta, half, off in ((dx, _BOX[0], shift[0]), (dy, _BOX[1], shift[1])):
        if delta:
            steps.append(((half if delta > 0 else -half) - off) / delta)
    step = min(steps)
    return centre[0] + dx * step, centre[1] + dy * step


def _towards(one: Point, other: Point, distance: float) -> Point:
    """Return the point at the given distance from one, towards the other."""
    dx, dy = other[0] - one[0], other[1] - one[1]
    long = hypot(dx, dy)
    return one[0] + dx / long * distance, one[1] + dy / long * distance


def _format_point(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
