"""`tubes top`: a live table of all tubes."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count as counted
from typing import Annotated, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

import tubes
from tubes.backend.url import read, redact_url
from tubes.cli.columns import Column, Grid
from tubes.cli.common import Url, connected, place_of
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.look import busiest, lanes_table, overview_json, pause_of
from tubes.cli.show import COLORS, as_json, console, span, text
from tubes.cli.streams import somebody_types

#: A tube with more lanes is not looked at lane by lane; the others are, every so many seconds.
_LANES, _LANES_EVERY = 1000, 5.0
#: Seconds to wait for a look before the screen goes on without it, and for the end of the connection.
_PATIENCE = 1.0
#: What is counted per second.
_RATES = ("put", "take", "ack")
_COLUMNS = (
    Column("tube", least=16),
    Column("ready", right=True),
    Column("taken", right=True),
    Column("delayed", right=True, leaves=5),
    Column("buried", right=True),
    Column("oldest", right=True, leaves=6),
    Column("put/s", right=True, leaves=4),
    Column("take/s", right=True, leaves=7),
    Column("ack/s", right=True, leaves=3),
    Column("wait", right=True, leaves=2),
    Column("sess", right=True, leaves=1),
    Column("late", right=True, leaves=9),
    Column("", leaves=8),
)


class Look(NamedTuple):
    """What was seen at one look."""

    seen: dict[str, tubes.Overview]
    #: Those lanes that were looked at this time; None: it was not their turn.
    lanes: dict[str, list[tubes.Utube]] | None


class Board:
    """What is known from one look to the next."""

    def __init__(self, opened: Callable[[], AbstractContextManager[tubes.Queue]], lanes: int) -> None:
        self._opened = opened
        self._lanes_shown = lanes
        self.seen: dict[str, tubes.Overview] = {}
        self.rates: dict[str, dict[str, float]] = {}
        self.lanes: dict[str, list[tubes.Utube]] = {}
        self._lanes_at = -_LANES_EVERY
        # The look that is on its way, in a thread: a server that is gone must not stop the screen.
        self._looking: Future[Look] | None = None
        self._heard = time.monotonic()
        #: Why there is no answer; nothing is known of a server that only does not say anything.
        self.error = ""

    @property
    def silence(self) -> float | None:
        """For how many seconds the server has not answered; None: it did when it was last asked."""
        return time.monotonic() - self._heard if self._looking is not None or self.error else None

    def look(self, patience: float | None = None) -> None:
        """Look at all tubes: two calls on a server, and one for each tube that has ready tasks.

        Waits so many seconds for what is seen; a look that takes longer is the next one too.
        """
        if self._looking is None:
            self._looking = Future()
            threading.Thread(target=self._look, args=(self._looking,), name="tubes-top", daemon=True).start()
        try:
            look = self._looking.result(patience)
        except NotInTime:
            return
        except (tubes.ConnectionLost, tubes.ServerRefused) as error:
            self._looking, self.error = None, str(error)
            return
        self._looking, self.error = None, ""
        self._heard = time.monotonic()
        self.rates = {name: _rates(self.seen.get(name), one) for name, one in look.seen.items()}
        self.seen = look.seen
        if look.lanes is not None:
            self.lanes = look.lanes

    def _look(self, answer: Future[Look]) -> None:
        try:
            with self._opened() as queue:
                seen, lanes = queue.overview(ages=True), None
                now = time.monotonic()
                if self._lanes_shown and now - self._lanes_at >= _LANES_EVERY:
                    self._lanes_at = now
                    lanes = self._look_at_lanes(queue, seen)
            answer.set_result(Look(seen, lanes))
        except BaseException as error:
            answer.set_exception(error)

    def _look_at_lanes(self, queue: tubes.Queue, seen: dict[str, tubes.Overview]) -> dict[str, list[tubes.Utube]]:
        found: dict[str, list[tubes.Utube]] = {}
        for name in _by_work(seen)[:3]:
            if 0 < seen[name].utubes <= _LANES:
                # Who may only look sees all but the lanes.
                with suppress(tubes.TubeNotFound, tubes.DriverNotFound, tubes.ServerRefused):
                    found[name] = busiest(queue.tube(name).utubes(), self._lanes_shown)
        return found

    def json(self) -> None:
        """A line for each tube."""
        for name in _by_work(self.seen):
            as_json(overview_json(name, self.seen[name]) | {"rates": self.rates[name]})

    def show(self, rows: int) -> Group:
        """The tables, as far as they have room."""
        made = Grid(_COLUMNS)
        names = _by_work(self.seen)
        for name in names[:rows]:
            made.add_row(*self._row(name))
        parts: list[RenderableType] = [made]
        if len(names) > rows:
            parts.append(text(f"… and {len(names) - rows} tubes with less", "dim"))
        left = rows - len(names) - 4
        for name, lanes in self.lanes.items():
            if lanes and name in self.seen and left > 3:
                parts += [text(f"busiest utubes of {name}", "bold"), lanes_table(lanes[:left], self.seen[name].at)]
                left -= len(lanes) + 4
        if self.silence is not None:
            why = f": {self.error}" if self.error else ""
            parts.append(text(f"no answer for {span(self.silence)}{why}", "bold red"))
        return Group(*parts)

    def _row(self, name: str) -> list[Text]:
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


def _by_work(seen: dict[str, tubes.Overview]) -> list[str]:
    """The tubes, those with the most work first."""

    def work(name: str) -> tuple[int, str]:
        tasks = seen[name].statistics.tasks
        return -tasks["ready"] - tasks["taken"], name

    return sorted(seen, key=work)


def _rates(before: tubes.Overview | None, now: tubes.Overview) -> dict[str, float]:
    """Calls per second since the last look; none at the first."""
    if before is None or now.at <= before.at:
        return {}
    were, are = before.statistics.calls, now.statistics.calls
    return {call: max(0.0, (are[call] - were[call]) / (now.at - before.at)) for call in _RATES}


def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two updates.")] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Exit after so many updates.", show_default=False)
    ] = None,
    lanes: Annotated[int, typer.Option("--utubes", min=0, help="How many of the busiest lanes to show.")] = 5,
    url: Url = None,
    as_json_: Annotated[
        bool, typer.Option("--json", help="Print a line for each tube at each update; without --count it does not end.")
    ] = False,
) -> None:
    """Show a live table of all tubes.

    q or Ctrl-C ends it. In a pipe, and with --json, it prints each update below the one before, until --count or Ctrl-C
    ends it.
    """
    with _soon() as stack:
        opened = partial(connected, url, looks=True)
        if read(place_of(url)).scheme == "file":  # Each connection sees it as it was at one moment.
            board = Board(opened, 0 if as_json_ else lanes)
        else:
            queue = stack.enter_context(opened())
            board = Board(lambda: nullcontext(queue), 0 if as_json_ else lanes)
        board.look()
        if as_json_ or count is not None or not sys.stdout.isatty():
            _print(board, interval, count, as_json_=as_json_)
            return
        output = console()
        title = redact_url(place_of(url))

        def shown_now() -> Group:
            head = text(f"tubes top · {title} · {time.strftime('%H:%M:%S')} · q ends", "bold")
            return Group(head, board.show(max(1, output.height - 6)))

        screen = Live(shown_now(), console=output, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt), _keys() as key, screen as live:
            while key(interval) != "q":
                board.look(min(interval, _PATIENCE))
                live.update(shown_now(), refresh=True)


@contextmanager
def _soon() -> Generator[ExitStack]:
    """Ends what it is given, but waits only a moment for that: a server that is gone keeps nobody here."""
    stack = ExitStack()

    def end() -> None:
        with suppress(tubes.TubesError):
            stack.close()

    try:
        yield stack
    finally:
        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        ending.join(_PATIENCE)


def _print(board: Board, interval: float, looks: int | None, *, as_json_: bool) -> None:
    """For pipes: each look below the one before; so many of them, or until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        for look in counted(1):
            if board.error and look == looks:
                raise Stop(board.error, Exit.UNREACHABLE)
            if board.error:
                say(board.error)
            elif as_json_:
                board.json()
            else:
                console().print(board.show(10**6))
            if look == looks:
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
