"""`tubes top`: a live table of all tubes."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

import tubes
from tubes.cli.common import Url, connected, place_of
from tubes.cli.look import busiest, lanes_table, overview_json, pause_of
from tubes.cli.show import COLORS, as_json, console, span, table, text
from tubes.cli.streams import somebody_types

#: A tube with more lanes is not looked at lane by lane; the others are, every so many seconds.
_LANES, _LANES_EVERY = 1000, 5.0
#: What is counted per second.
_RATES = ("put", "take", "ack")


class Board:
    """What is known from one look to the next."""

    def __init__(self, queue: tubes.Queue, lanes: int) -> None:
        self._queue = queue
        self._lanes_shown = lanes
        self.seen: dict[str, tubes.Overview] = {}
        self.rates: dict[str, dict[str, float]] = {}
        self.lanes: dict[str, list[tubes.Utube]] = {}
        self._lanes_at = -_LANES_EVERY
        #: Why the last look failed.
        self.error = ""

    def look(self) -> None:
        """Look at all tubes: two calls on a server, and one for each tube that has ready tasks."""
        try:
            seen = self._queue.overview(ages=True)
            self.rates = {name: _rates(self.seen.get(name), one) for name, one in seen.items()}
            self.seen = seen
            now = time.monotonic()
            if self._lanes_shown and now - self._lanes_at >= _LANES_EVERY:
                self._lanes_at = now
                self.lanes = self._look_at_lanes()
            self.error = ""
        except (tubes.ConnectionLost, tubes.ServerRefused) as error:
            self.error = str(error)

    def _look_at_lanes(self) -> dict[str, list[tubes.Utube]]:
        found: dict[str, list[tubes.Utube]] = {}
        for name in self.names()[:3]:
            if 0 < self.seen[name].utubes <= _LANES:
                with suppress(tubes.TubeNotFound, tubes.DriverNotFound):
                    found[name] = busiest(self._queue.tube(name).utubes(), self._lanes_shown)
        return found

    def names(self) -> list[str]:
        """The tubes, those with the most work first."""

        def work(name: str) -> tuple[int, str]:
            tasks = self.seen[name].statistics.tasks
            return -tasks["ready"] - tasks["taken"], name

        return sorted(self.seen, key=work)

    def json(self) -> None:
        """A line for each tube."""
        for name in self.names():
            as_json(overview_json(name, self.seen[name]) | {"rates": self.rates[name]})

    def show(self, rows: int) -> Any:
        """The tables, as far as they have room."""
        numbers = ("ready", "taken", "delayed", "buried", "oldest", "put/s", "take/s", "ack/s", "wait", "sess", "late")
        made = table("tube", *numbers, "", right=numbers)
        names = self.names()
        for name in names[:rows]:
            made.add_row(*self._row(name))
        parts: list[Any] = [made]
        if len(names) > rows:
            parts.append(text(f"… and {len(names) - rows} tubes with less", "dim"))
        left = rows - len(names) - 4
        for name, lanes in self.lanes.items():
            if lanes and name in self.seen and left > 3:
                parts += [text(f"busiest utubes of {name}", "bold"), lanes_table(lanes[:left], self.seen[name].at)]
                left -= len(lanes) + 4
        if self.error:
            parts.append(text(self.error, "bold red"))
        return Group(*parts)

    def _row(self, name: str) -> list[Any]:
        one = self.seen[name]
        tasks, rates = one.statistics.tasks, self.rates[name]
        states = ("ready", "taken", "delayed", "buried")
        counts = [text(tasks[state], COLORS[state] if tasks[state] else "dim") for state in states]
        speeds = [text(f"{rates[call]:.1f}" if call in rates else "") for call in _RATES]
        return [
            text(name),
            *counts,
            text(span(one.oldest_ready_age)),
            *speeds,
            text(one.statistics.waiting),
            text(one.sessions),
            text(span(one.due_lag) if one.due_lag >= 1 else "", "bold red"),
            text(pause_of(one), "yellow"),
        ]


def _rates(before: tubes.Overview | None, now: tubes.Overview) -> dict[str, float]:
    """Calls per second since the last look; none at the first."""
    if before is None or now.at <= before.at:
        return {}
    were, are = before.statistics.calls, now.statistics.calls
    return {call: max(0.0, (are[call] - were[call]) / (now.at - before.at)) for call in _RATES}


def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    lanes: Annotated[int, typer.Option("--utubes", min=0, help="How many of the busiest utubes to show.")] = 5,
    url: Url = None,
    as_json_: Annotated[bool, typer.Option("--json", help="For programs: a line of JSON for each tube.")] = False,
) -> None:
    """A live table of all tubes; q or Ctrl-C ends it."""
    with connected(url) as queue:
        board = Board(queue, 0 if as_json_ else lanes)
        board.look()
        if as_json_ or once or not sys.stdout.isatty():
            _print(board, interval, once=once, as_json_=as_json_)
            return
        output = console()
        title = place_of(url).rpartition("@")[2]

        def shown() -> Any:
            head = text(f"tubes top · {title} · {time.strftime('%H:%M:%S')} · q ends", "bold")
            return Group(head, board.show(max(1, output.height - 6)))

        screen = Live(shown(), console=output, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt), _keys() as key, screen as live:
            while key(interval) != "q":
                board.look()
                live.update(shown(), refresh=True)


def _print(board: Board, interval: float, *, once: bool, as_json_: bool) -> None:
    """For pipes: each look below the one before."""
    with suppress(KeyboardInterrupt):
        while True:
            if as_json_:
                board.json()
            else:
                console().print(board.show(10**6))
            if once:
                return
            time.sleep(interval)
            board.look()


@contextmanager
def _keys() -> Generator[Callable[[float], str]]:
    """What waits so many seconds for a key, and answers it; where stdin is no terminal it only waits."""
    if not somebody_types():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def key(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([number], [], [], seconds)[0] else ""

    try:
        tty.setcbreak(number)
        yield key
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


COMMANDS: tuple[Callable[..., None], ...] = (top,)
