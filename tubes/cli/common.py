"""Options and helpers that commands share."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_type_hints

import typer

import tubes
from tubes.backend.url import read, redact_url, url_of_environment
from tubes.cli.exits import Exit, Stop, code_of, describe_error, say
from tubes.cli.streams import is_interactive
from tubes.drivers.registry import known_drivers
from tubes.errors import Facts, did_you_mean
from tubes.memory.store import list_store_names

T = TypeVar("T")
#: Seconds after which a terminal shows that the server does not reply.
_SILENCE = 1.0
#: Connect timeout in seconds. It is short because the user can repeat the command.
CONNECT_TIMEOUT = 2.0
#: Connect timeout in seconds for shell completion, while the user types.
_COMPLETION_TIMEOUT = 0.5


def _complete(incomplete: str, names: Callable[[tubes.Queue], Iterable[str]]) -> list[str]:
    """Return the names with this prefix for shell completion, or [] if no server replies."""
    try:
        with tubes.connect(_read_only_url(place_of(None)), connect_timeout=_COMPLETION_TIMEOUT) as queue:
            return [name for name in names(queue) if name.startswith(incomplete)]
    except Exception:  # An error message would disturb the user's typing.
        return []


def complete_tubes(incomplete: str) -> list[str]:
    return _complete(incomplete, lambda queue: queue.tubes())


def complete_lanes(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(incomplete, lambda queue: (one.name for one in queue.tube(context.params["name"]).lanes()))


def complete_drivers(incomplete: str) -> list[str]:
    return [name for name in known_drivers() if name.startswith(incomplete)]


def _complete_states(states: Iterable[tubes.State]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in map(str, states) if name.startswith(incomplete)]


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
Because = Annotated[
    str | None,
    typer.Option("--because", metavar="TEXT", help="The reason, which `tubes buried` and `tubes peek` show."),
]
OfState = Annotated[
    str | None,
    typer.Option(
        "--state",
        "-s",
        help="Only tasks in this state: ready, taken, buried, delayed or done (kept tasks).",
        autocompletion=_complete_states(tubes.State),
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
#: Seconds per unit of a duration.
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(words: str) -> float:
    """Parse seconds, or a number with a unit: 90, 10m, 2h, 3d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", words.strip())
    if found is None:
        raise typer.BadParameter(f"{words!r}: must be seconds, or a number with s, m, h or d, such as 10m or 3d")
    return float(found[1]) * _UNITS[found[2]]


def path_of(words: object) -> Path:
    """Parse the path of a file or folder. `~` is the home folder, also where no shell replaces it."""
    if str(words)[:5].lower() == "file:":
        raise typer.BadParameter(f"{words}: must be a path, not a URL")
    try:
        return Path(str(words)).expanduser()
    except RuntimeError:
        raise typer.BadParameter(f"{words}: begins with ~ and an unknown user") from None


def _of_states(states: Iterable[tubes.State]) -> object:
    """Return the option --state of a command that accepts only these states."""
    *names, last = map(str, states)
    words = f"Only tasks in this state: {', '.join(names)} or {last}."
    return Annotated[str | None, typer.Option("--state", "-s", help=words, autocompletion=_complete_states(states))]


#: The options of commands that select tasks: the parameters of `Tube.select`.
_FILTERS: dict[str, object] = {
    "state": OfState,
    "reason": Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only buried tasks with this reason: the whole text, or its part before the first colon, such as "
            "ValueError.",
        ),
    ],
    "contains": Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only tasks with this text in their data, as it is stored.")
    ],
    "function": Annotated[
        str | None, typer.Option(metavar="NAME", help="Only tasks that call the task function with this name.")
    ],
    "lane": Annotated[str | None, typer.Option(help="Only tasks in this lane.", autocompletion=complete_lanes)],
    "key": Annotated[str | None, typer.Option(help="Only the task with this key.")],
    "older_than": Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Only tasks put at least this long ago: 90, 10m, 2h, 3d."),
    ],
    "attempts": Annotated[int | None, typer.Option(min=1, help="Only tasks that were taken at least this many times.")],
    "limit": Annotated[int | None, typer.Option("--limit", "-n", min=1, help="The maximum number of tasks.")],
    "newest_first": Annotated[
        bool, typer.Option("--newest-first", help="In reverse order: the task that would be taken last comes first.")
    ],
}
#: The other options of commands that change the selected tasks.
_CARE: dict[str, object] = {
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Change nothing: count the tasks, and show five.")],
    "yes": Yes,
}


class Wanted(NamedTuple):
    """The options of the command line that select tasks: arguments of `Tube.select`, without defaults."""

    filters: Facts
    dry_run: bool = False
    yes: bool = False

    def refuse_ids(self, *allowed: str) -> None:
        """Refuse options that select tasks, except the allowed ones: the command has the ids of tasks."""
        for name in (*self.filters, *(["dry_run"] if self.dry_run else [])):
            if name not in allowed:
                raise Stop(f"ids of tasks and --{name.replace('_', '-')} cannot be used together", Exit.USAGE)

    def nothing(self, tube: tubes.Tube) -> Stop:
        """Return the error that no task is selected, with a hint if a similar reason exists."""
        reason = self.filters.get("reason")
        hint = did_you_mean(reason, tube.admin.reasons()) if reason and self.filters.get("state") != "done" else ""
        if re.search("[:,] ", self.filters.get("contains", "")):
            hint += "; --contains searches the data as stored: JSON without spaces after its commas and colons"
        return Stop(f"tube {tube.name!r} has no such tasks{hint}", Exit.NOTHING)


def selecting(
    *,
    unwanted: Iterable[str] = (),
    states: Iterable[tubes.State] = (),
    limit: int | None = None,
    changes: bool = True,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that select tasks, in place of its parameter `wanted`.

    `unwanted`: filters that the command lacks. `states`: the states that it accepts; empty: all. `limit`: the default
    of --limit. `changes`: the command changes the tasks.
    """
    options = {name: option for name, option in _FILTERS.items() if name not in unwanted} | (_CARE if changes else {})
    if states and "state" in options:
        options["state"] = _of_states(states)
    defaults = {name: False if name in ("newest_first", *_CARE) else None for name in options} | {"limit": limit}

    def choose(chosen: Facts) -> Wanted:
        care = {name: chosen.pop(name) for name in _CARE if name in chosen}
        return Wanted({name: value for name, value in chosen.items() if value != defaults[name]}, **care)

    table = {name: (option, defaults[name]) for name, option in options.items()}
    return lambda command: _with_options(command, "wanted", table, choose)


def with_options(table: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a dataclass, in place of its parameter `options`."""
    hints = get_type_hints(table, include_extras=True)
    options = {field.name: (hints[field.name], field.default) for field in fields(cast("Any", table))}
    return lambda command: _with_options(command, "options", options, lambda chosen: table(**chosen))


def _with_options(
    command: Callable[..., None],
    parameter: str,
    options: Mapping[str, tuple[object, object]],
    combine: Callable[[Facts], object],
) -> Callable[..., None]:
    """Replace a parameter of a command by options, with the annotation and default of each."""

    @functools.wraps(command)
    def run(**words: Any) -> None:
        chosen = {name: words.pop(name) for name in options}
        command(**words, **{parameter: combine(chosen)})

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    signature = inspect.signature(command, eval_str=True)
    for known in signature.parameters.values():
        if known.name != parameter:
            parameters.append(known.replace(kind=kind))
            continue
        for name, (annotation, default) in options.items():
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def place_of(url: str | None) -> str:
    """Return `url`, or the URL of the environment."""
    place = url or url_of_environment()
    if not place:
        raise Stop("no server is given: pass --url redis://host or set TUBES_URL", Exit.USAGE)
    return place


def shared_place_of(url: str | None) -> str:
    """Return `url`, or the URL of the environment. Raise `Stop` for memory, which only this process would use."""
    place = place_of(url)
    scheme, _, name = place.partition("?")[0].partition("://")
    if scheme == "memory" and name not in list_store_names():
        raise Stop(
            f"{redact_url(place)} is empty in every new process, so it has no tubes: give the URL of a server",
            Exit.USAGE,
        )
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
    connect_timeout: float | None = None,
    *,
    read_only: bool = False,
) -> Generator[tubes.Queue]:
    """Open the queue that the command uses, and close it at the end.

    `read_only`: the command only reads, so it neither owns nor creates a folder.
    `connect_timeout`: in seconds, if the URL has no `connect_timeout`. Default: `CONNECT_TIMEOUT`.
    """
    place = shared_place_of(url)
    if read_only:
        place = _read_only_url(place)
    timeout = None
    if "connect_timeout" not in read(place).settings:
        timeout = CONNECT_TIMEOUT if connect_timeout is None else connect_timeout
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
    return ", ".join(map(str, ids))


def require_confirmation(what: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere `--yes` is required."""
    if yes:
        return
    if not is_interactive():
        raise Stop(f"this would {what}: pass --yes to confirm it", Exit.USAGE)
    if not typer.confirm(f"This will {what}. Continue?", err=True):
        raise Stop("nothing was done", Exit.NOTHING)


def drop_none(**options: object) -> Facts:
    return {name: value for name, value in options.items() if value is not None}


def pairs(words: Iterable[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Stop(f"{option} {word!r}: must be name=value", Exit.USAGE)
        found[name] = value
    return found
