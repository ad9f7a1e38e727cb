"""`tubes top`: a live table of all tubes."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count as counted
from typing import Annotated, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

import tubes
from tubes.backend.url import read, redact_url
from tubes.cli.columns import Column, Grid
from tubes.cli.common import Url, open_queue, place_of
from tubes.cli.exits import Exit, Stop, say
from tubes.cli.look import busiest, lanes_table, overview_json, pause_of
from tubes.cli.show import COLORS, console, print_json, span, text
from tubes.cli.streams import is_interactive

#: Read the lanes of tubes with up to `_MAX_LANES` lanes, once per `_LANES_INTERVAL` seconds.
_MAX_LANES, _LANES_INTERVAL = 1000, 5.0
#: Seconds to wait for a reply before the screen is drawn without it, and for the connection to close.
_REPLY_TIMEOUT = 1.0
#: Calls whose rates are shown.
_RATES = ("put", "take", "ack")
_COLUMNS = (
    Column("tube", min_width=16),
    Column("ready", right=True),
    Column("taken", right=True),
    Column("delayed", right=True, drop_order=5),
    Column("buried", right=True),
    Column("oldest", right=True, drop_order=6),
    Column("put/s", right=True, drop_order=4),
    Column("take/s", right=True, drop_order=7),
    Column("ack/s", right=True, drop_order=3),
    Column("wait", right=True, drop_order=2),
    Column("sess", right=True, drop_order=1),
    Column("overdue", right=True, drop_order=9),
    Column("", drop_order=8),
)


#: The overviews of all tubes, and the busiest lanes by tube; None: the lanes were not read this time.
Look: TypeAlias = tuple[dict[str, tubes.Overview], dict[str, list[tubes.LaneInfo]] | None]


class Board:
    """The data on the screen, and the request that updates them."""

    def __init__(self, connect: Callable[[], AbstractContextManager[tubes.Queue]], lanes: int) -> None:
        self._connect = connect
        self._lane_count = lanes
        self.overviews: dict[str, tubes.Overview] = {}
        self.rates: dict[str, dict[str, float]] = {}
        self.lanes: dict[str, list[tubes.LaneInfo]] = {}
        self._lanes_at = -_LANES_INTERVAL
        #: The request in progress. It runs in a thread, so that an unreachable server does not block the screen.
        self._request: Future[Look] | None = None
        self._last_reply = time.monotonic()
        #: Error of the last request; empty if it succeeded or the server has not replied yet.
        self.error = ""

    @property
    def silence(self) -> float | None:
        """Seconds since the last reply, or None if the last request has succeeded."""
        return time.monotonic() - self._last_reply if self._request is not None or self.error else None

    def look(self, timeout: float | None = None) -> None:
        """Read all tubes. This takes two calls on a server, and one for each tube that has ready tasks.

        Waits up to `timeout` seconds for the reply. A request that takes longer continues, and the next call waits
        for it.
        """
        if self._request is None:
            self._request = Future()
            threading.Thread(target=self._look, args=(self._request,), name="tubes-top", daemon=True).start()
        try:
            overviews, lanes = self._request.result(timeout)
        except FutureTimeout:
            return
        except (tubes.ConnectionLost, tubes.ServerRefused) as error:
            self._request, self.error = None, str(error)
            return
        self._request, self.error = None, ""
        self._last_reply = time.monotonic()
        self.rates = {name: _rates(self.overviews.get(name), new) for name, new in overviews.items()}
        self.overviews = overviews
        if lanes is not None:
            self.lanes = lanes

    def _look(self, future: Future[Look]) -> None:
        try:
            with self._connect() as queue:
                overviews, lanes = queue.admin.overview(ages=True), None
                now = time.monotonic()
                if self._lane_count and now - self._lanes_at >= _LANES_INTERVAL:
                    self._lanes_at = now
                    lanes = self._read_lanes(queue, overviews)
            future.set_result((overviews, lanes))
        except BaseException as error:
            future.set_exception(error)

    def _read_lanes(self, queue: tubes.Queue, overviews: dict[str, tubes.Overview]) -> dict[str, list[tubes.LaneInfo]]:
        found: dict[str, list[tubes.LaneInfo]] = {}
        for name in _sort_by_work(overviews)[:3]:
            if 0 < overviews[name].lanes <= _MAX_LANES:
                # A user with the right to look may read all but the lanes.
                with suppress(tubes.TubeNotFound, tubes.DriverNotFound, tubes.ServerRefused):
                    found[name] = busiest(queue.tube(name).lanes(), self._lane_count)
        return found

    def json(self) -> None:
        for name in _sort_by_work(self.overviews):
            print_json(overview_json(name, self.overviews[name]) | {"rates": self.rates[name]})

    def show(self, rows: int) -> Group:
        """Build the tables, cut to this number of rows."""
        grid = Grid(_COLUMNS)
        names = _sort_by_work(self.overviews)
        for name in names[:rows]:
            grid.add_row(*self._row(name))
        parts: list[RenderableType] = [grid]
        if len(names) > rows:
            parts.append(text(f"… and {len(names) - rows} tubes with fewer tasks", "dim"))
        remaining = rows - len(names) - 4
        for name, lanes in self.lanes.items():
            if lanes and name in self.overviews and remaining > 3:
                table = lanes_table(lanes[:remaining], self.overviews[name].at)
                parts += [text(f"busiest lanes of {name}", "bold"), table]
                remaining -= len(lanes) + 4
        if self.silence is not None:
            error = f": {self.error}" if self.error else ""
            parts.append(text(f"no reply for {span(self.silence)}{error}", "bold red"))
        return Group(*parts)

    def _row(self, name: str) -> list[Text]:
        overview = self.overviews[name]
        tasks, rates = overview.statistics.tasks, self.rates[name]
        states = ("ready", "taken", "delayed", "buried")
        counts = [text(tasks[state], COLORS[state] if tasks[state] else "dim") for state in states]
        speeds = [text(f"{rates[call]:.1f}" if call in rates else "") for call in _RATES]
        return [
            text(name),
            *counts,
            text(span(overview.oldest_ready_age)),
            *speeds,
            text(overview.statistics.waiting),
            text(overview.sessions),
            text(span(overview.due_lag) if overview.due_lag >= 1 else "", "bold red"),
            text(pause_of(overview), "yellow"),
        ]


def _sort_by_work(overviews: dict[str, tubes.Overview]) -> list[str]:
    """Return the names of tubes, the ones with the most ready and taken tasks first."""

    def sort_key(name: str) -> tuple[int, str]:
        tasks = overviews[name].statistics.tasks
        return -tasks["ready"] - tasks["taken"], name

    return sorted(overviews, key=sort_key)


def _rates(old: tubes.Overview | None, new: tubes.Overview) -> dict[str, float]:
    if old is None or new.at <= old.at:
        return {}
    old_calls, new_calls = old.statistics.calls, new.statistics.calls
    return {call: max(0.0, (new_calls[call] - old_calls[call]) / (new.at - old.at)) for call in _RATES}


def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two updates.")] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Exit after this many updates.", show_default=False)
    ] = None,
    lanes: Annotated[int, typer.Option("--lanes", min=0, help="The number of lanes to show, the busiest first.")] = 5,
    url: Url = None,
    as_json_: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each tube at each update, until --count or Ctrl-C.")
    ] = False,
) -> None:
    """Show a live table of all tubes.

    q or Ctrl-C ends it. In a pipe, and with --json, it prints each update below the last one, until --count or Ctrl-C
    ends it.
    """
    with _close_quickly() as stack:
        connect = partial(open_queue, url, read_only=True)
        if read(place_of(url)).scheme == "file":  # A connection to a folder is a snapshot: open one per update.
            board = Board(connect, 0 if as_json_ else lanes)
        else:
            queue = stack.enter_context(connect())
            board = Board(lambda: nullcontext(queue), 0 if as_json_ else lanes)
        board.look()
        if as_json_ or count is not None or not sys.stdout.isatty():
            _print(board, interval, count, as_json_=as_json_)
            return
        output = console()
        title = redact_url(place_of(url))

        def render() -> Group:
            head = text(f"tubes top · {title} · {time.strftime('%H:%M:%S')} · q ends", "bold")
            return Group(head, board.show(max(1, output.height - 6)))

        screen = Live(render(), console=output, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt), _keys() as key, screen as live:
            while key(interval) != "q":
                board.look(min(interval, _REPLY_TIMEOUT))
                live.update(render(), refresh=True)


@contextmanager
def _close_quickly() -> Generator[ExitStack]:
    """Close the stack in the background at the end, and wait for this only a moment: the server may be unreachable."""
    stack = ExitStack()

    def end() -> None:
        with suppress(tubes.TubesError):
            stack.close()

    try:
        yield stack
    finally:
        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        thread.join(_REPLY_TIMEOUT)


def _print(board: Board, interval: float, updates: int | None, *, as_json_: bool) -> None:
    """Print this number of updates one below the other; None: until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        for number in counted(1):
            if board.error and number == updates:
                raise Stop(board.error, Exit.UNREACHABLE)
            if board.error:
                say(board.error)
            elif as_json_:
                board.json()
            else:
                console().print(board.show(10**6))
            if number == updates:
                return
            time.sleep(interval)
            board.look()


@contextmanager
def _keys() -> Generator[Callable[[float], str]]:
    """Provide a function that waits up to this many seconds for a key, and returns it.

    If stdin is not a terminal, it only waits.
    """
    if not is_interactive():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    attributes = termios.tcgetattr(number)

    def key(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([number], [], [], seconds)[0] else ""

    try:
        tty.setcbreak(number)
        yield key
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, attributes)


COMMANDS: tuple[Callable[..., None], ...] = (top,)
