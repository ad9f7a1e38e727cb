"""What all commands share: their options, and the queue that they work on."""

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
from tubes.cli.exits import Exit, Stop, code_of, in_words_of_the_command, say
from tubes.cli.streams import somebody_types
from tubes.drivers.registry import known_drivers
from tubes.memory.store import named

#: Seconds after which somebody who looks on is told that the server does not answer.
_SILENCE = 1.0
#: Seconds after which a first connection is given up: whoever typed the command can type it again.
PATIENCE = 2.0
#: The same in the middle of somebody's typing.
_TYPING = 0.5


def complete_tubes(incomplete: str) -> list[str]:
    """The names of tubes that begin so, for the shell's completion: none where no server answers."""
    try:
        with tubes.connect(_to_look_at(place_of(None)), connect_timeout=_TYPING) as queue:
            return [name for name in queue.tubes() if name.startswith(incomplete)]
    except Exception:  # In the middle of somebody's typing nothing may be said.
        return []


def complete_drivers(incomplete: str) -> list[str]:
    """The names of drivers that begin so."""
    return [name for name in known_drivers() if name.startswith(incomplete)]


def complete_states(incomplete: str) -> list[str]:
    """The states of tasks that begin so."""
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
    """The URL that was given, or that of the environment."""
    place = url or url_of_environment()
    if not place:
        raise Stop("no server is given: pass --url redis://host or set TUBES_URL", Exit.USAGE)
    return place


def _to_look_at(place: str) -> str:
    """The URL for a command that only looks: a folder may belong to another process."""
    about = read(place)
    if about.scheme != "file" or "mode" in about.settings:
        return place
    return f"{place}{'&' if about.settings else '?'}mode=read"


@contextmanager
def connected(
    url: str | None,
    codec: str | None = None,
    session_ttl: float | None = None,
    patience: float | None = None,
    *,
    looks: bool = False,
) -> Generator[tubes.Queue]:
    """The queue that the command works on; closed at the end.

    `looks`: the command only looks. Then it needs no folder for itself, and makes none.
    `patience`: seconds to wait for a connection where the URL has no `connect_timeout`; `PATIENCE` unless told.
    """
    place = place_of(url)
    scheme, _, name = place.partition("?")[0].partition("://")
    if scheme == "memory" and name not in named():
        raise Stop(
            f"{redact_url(place)} is empty in every new process, so it has no tubes: give the URL of a server",
            Exit.USAGE,
        )
    if looks:
        place = _to_look_at(place)
    timeout = None
    if "connect_timeout" not in read(place).settings:
        timeout = PATIENCE if patience is None else patience
    with _notice(place), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        queue = tubes.connect(place, codec=codec, session_ttl=session_ttl, connect_timeout=timeout)
    for warning in warned:
        say(f"warning: {warning.message}")
    with queue:
        yield queue


@contextmanager
def _notice(place: str) -> Generator[None]:
    """A word to whoever looks on, if it takes long."""
    notice = threading.Timer(_SILENCE, say, [f"no answer from {redact_url(place)} yet, still trying; Ctrl-C stops it"])
    notice.daemon = True
    if sys.stderr.isatty():
        notice.start()
    try:
        yield
    finally:
        notice.cancel()


def each(ids: Iterable[int], act: Callable[[int], object], done: str) -> list[int]:
    """Do this to tasks one by one; answers their ids. What goes wrong in the middle says what was done before."""
    did: list[int] = []
    try:
        for task in ids:
            act(task)
            did.append(task)
    except tubes.TubesError as error:
        if not did:
            raise
        raise Stop(f"{in_words_of_the_command(error)}; {done}: {listed(did)}", code_of(error)) from error
    return did


def listed(ids: Iterable[int]) -> str:
    """Ids in a sentence."""
    return ", ".join(map(str, ids))


def sure(what: str, *, yes: bool) -> None:
    """Ask before something is destroyed; where nobody can be asked `--yes` must have said so."""
    if yes:
        return
    if not somebody_types():
        raise Stop(f"this would {what}: pass --yes to confirm it", Exit.USAGE)
    if not typer.confirm(f"This will {what}. Continue?", err=True):
        raise Stop("nothing was done", Exit.NOTHING)


def given(**options: object) -> dict[str, Any]:
    """Those options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def lanes(tube: tubes.Tube, utube: str | None) -> dict[str, str]:
    """The option that names a task's lane."""
    return {} if utube is None else {"utube": utube}


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` words as a dict."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Stop(f"{option} {word!r}: must be name=value", Exit.USAGE)
        found[name] = value
    return found
