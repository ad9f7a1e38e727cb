"""Options and helpers that commands share."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import tubes
from tubes.backend.url import read, redact_url, url_of_environment
from tubes.cli.exits import Exit, Stop, code_of, describe_error, say
from tubes.cli.streams import is_interactive
from tubes.drivers.registry import known_drivers
from tubes.memory.store import list_store_names

#: Seconds after which a terminal shows that the server does not reply.
_SILENCE = 1.0
#: Connect timeout in seconds. It is short because the user can repeat the command.
PATIENCE = 2.0
#: Connect timeout in seconds for shell completion, while the user types.
_COMPLETION_TIMEOUT = 0.5


def complete_tubes(incomplete: str) -> list[str]:
    """Return the names of tubes with this prefix for shell completion, or [] if no server replies."""
    try:
        with tubes.connect(_read_only_url(place_of(None)), connect_timeout=_COMPLETION_TIMEOUT) as queue:
            return [name for name in queue.tubes() if name.startswith(incomplete)]
    except Exception:  # An error message would disturb the user's typing.
        return []


def complete_lanes(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of lanes with this prefix, of the tube in front of the lane, or [] if no server replies."""
    try:
        with tubes.connect(_read_only_url(place_of(None)), connect_timeout=_COMPLETION_TIMEOUT) as queue:
            names = [lane.name for lane in queue.tube(context.params["name"]).lanes()]
    except Exception:  # An error message would disturb the user's typing.
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_drivers(incomplete: str) -> list[str]:
    """Return the names of drivers with this prefix."""
    return [name for name in known_drivers() if name.startswith(incomplete)]


def complete_states(incomplete: str) -> list[str]:
    """Return the states of tasks with this prefix."""
    return [name for name in ("ready", "taken", "buried", "delayed", "done") if name.startswith(incomplete)]


Url = Annotated[
    str | None,
    typer.Option("--url", "-u", metavar="URL", help="The URL of the server. Default: TUBES_URL.", show_default=False),
]
Codec = Annotated[
    str | None,
    typer.Option("--codec", metavar="NAME", help="The format of the data: json, raw or msgpack.", show_default="json"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line, for programs.")]
Name = Annotated[
    str,
    typer.Argument(metavar="TUBE", help="The name of the tube.", show_default=False, autocompletion=complete_tubes),
]
LaneName = Annotated[
    str,
    typer.Argument(
        metavar="LANE", help="The name of the lane: `tubes lanes`.", show_default=False, autocompletion=complete_lanes
    ),
]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="The ids of tasks.", show_default=False)]
SomeIds = Annotated[list[int], typer.Argument(metavar="ID", help="The ids of tasks.", show_default=False)]
OfState = Annotated[
    str | None,
    typer.Option(
        "--state",
        "-s",
        help="Only tasks in this state: ready, taken, buried, delayed, or done ones that are kept.",
        autocompletion=complete_states,
    ),
]
Create = Annotated[
    str | None,
    typer.Option(
        metavar="DRIVER",
        help="Create the tube with this driver if it does not exist.",
        autocompletion=complete_drivers,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def place_of(url: str | None) -> str:
    """Return `url`, or the URL of the environment."""
    place = url or url_of_environment()
    if not place:
        raise Stop("no server is given: pass --url redis://host or set TUBES_URL", Exit.USAGE)
    return place


def _read_only_url(place: str) -> str:
    """Return the URL for a command that only reads: another process may own the folder."""
    parsed = read(place)
    if parsed.scheme != "file" or "mode" in parsed.settings:
        return place
    return f"{place}{'&' if parsed.settings else '?'}mode=read"


@contextmanager
def open_queue(
    url: str | None,
    codec: str | None = None,
    session_ttl: float | None = None,
    patience: float | None = None,
    *,
    read_only: bool = False,
) -> Generator[tubes.Queue]:
    """Open the queue that the command uses, and close it at the end.

    `read_only`: the command only reads, so it neither owns nor creates a folder.
    `patience`: connect timeout in seconds if the URL has no `connect_timeout`. Default: `PATIENCE`.
    """
    place = place_of(url)
    scheme, _, name = place.partition("?")[0].partition("://")
    if scheme == "memory" and name not in list_store_names():
        raise Stop(
            f"{redact_url(place)} is empty in every new process, so it has no tubes: give the URL of a server",
            Exit.USAGE,
        )
    if read_only:
        place = _read_only_url(place)
    timeout = None
    if "connect_timeout" not in read(place).settings:
        timeout = PATIENCE if patience is None else patience
    with _notice(place), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        queue = tubes.connect(place, codec=codec, session_ttl=session_ttl, connect_timeout=timeout)
    for warning in caught:
        say(f"warning: {warning.message}")
    with queue:
        yield queue


@contextmanager
def _notice(place: str) -> Generator[None]:
    """Print a notice on a terminal if the block takes long."""
    notice = threading.Timer(_SILENCE, say, [f"no reply from {redact_url(place)} yet, still trying; Ctrl-C stops it"])
    notice.daemon = True
    if sys.stderr.isatty():
        notice.start()
    try:
        yield
    finally:
        notice.cancel()


def apply_to_each(ids: Iterable[int], act: Callable[[int], object], action: str) -> list[int]:
    """Call `act` for each id, and return the ids. An error reports the tasks that were handled before it."""
    done: list[int] = []
    try:
        for task in ids:
            act(task)
            done.append(task)
    except tubes.TubesError as error:
        if not done:
            raise
        raise Stop(f"{describe_error(error)}; {action}: {join_ids(done)}", code_of(error)) from error
    return done


def join_ids(ids: Iterable[int]) -> str:
    """Return ids as text, separated by commas."""
    return ", ".join(map(str, ids))


def require_confirmation(what: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere `--yes` is required."""
    if yes:
        return
    if not is_interactive():
        raise Stop(f"this would {what}: pass --yes to confirm it", Exit.USAGE)
    if not typer.confirm(f"This will {what}. Continue?", err=True):
        raise Stop("nothing was done", Exit.NOTHING)


def drop_none(**options: object) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def lanes(tube: tubes.Tube, utube: str | None) -> dict[str, str]:
    """Return the option of put for the lane `utube`, if any."""
    return {} if utube is None else {"utube": utube}


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """Parse `name=value` words into a dict."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Stop(f"{option} {word!r}: must be name=value", Exit.USAGE)
        found[name] = value
    return found
