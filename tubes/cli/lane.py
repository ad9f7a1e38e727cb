"""Commands for one lane of a tube: info, block, unblock, configure."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from tubes import sync
from tubes.cli.common import AsJson, LaneName, Name, Url, drop_none, open_queue
from tubes.cli.exits import Exit, Stop
from tubes.cli.look import lanes_table
from tubes.cli.show import console, print_json
from tubes.errors import Facts

lane = typer.Typer(
    name="lane",
    no_args_is_help=True,
    help="Show, block or configure one lane of a tube. `tubes lanes` lists the lanes.",
)
#: The word that resets a limit to the tube's.
_DEFAULT = "default"


@contextmanager
def _lane(name: str, lane_name: str, url: str | None, *, as_json_: bool) -> Generator[sync.Lane]:
    """Open a lane for a change; print it as JSON after the change."""
    with open_queue(url) as queue:
        one = queue.tube(name).lane(lane_name)
        yield one
        if as_json_:
            print_json(one.info()._asdict())


@lane.command()
def info(name: Name, lane_name: LaneName, url: Url = None, as_json_: AsJson = False) -> None:
    """Show the tasks, the limits, the next start and the block of a lane."""
    with open_queue(url, read_only=True) as queue:
        found = queue.tube(name).lane(lane_name).info()
    if as_json_:
        print_json(found._asdict())
    else:
        console().print(lanes_table([found], time.time()))


@lane.command()
def block(
    name: Name,
    lane_name: LaneName,
    seconds: Annotated[float, typer.Argument(metavar="SECONDS", help="The length of the block.", show_default=False)],
    extend: Annotated[bool, typer.Option("--extend", help="Do not shorten a block that ends later.")] = False,
    because: Annotated[str | None, typer.Option(help="The reason, which `tubes lane info` shows.")] = None,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Stop takes from a lane for some seconds.

    The lane may have no tasks yet. Another block replaces it.
    """
    with _lane(name, lane_name, url, as_json_=as_json_) as one:
        one.block(seconds, extend=extend, reason=because)


@lane.command()
def unblock(name: Name, lane_name: LaneName, url: Url = None, as_json_: AsJson = False) -> None:
    """End the block of a lane. A cooldown continues."""
    with _lane(name, lane_name, url, as_json_=as_json_) as one:
        one.unblock()


@lane.command()
def configure(
    name: Name,
    lane_name: LaneName,
    interval: Annotated[
        str | None, typer.Option(metavar="SECONDS|RATE", help="Seconds from one take to the next, or 10/s or 500/min.")
    ] = None,
    max_in_flight: Annotated[
        str | None, typer.Option(metavar="N", help="The number of its tasks that may be taken at a time.")
    ] = None,
    interval_from: Annotated[
        str | None, typer.Option(metavar="take|ack", help="ack: the interval must also pass after each run.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="N", help="The maximum number of its tasks. 0: no maximum.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option(metavar="N", help="The number of takes that may start at once after an idle time.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(metavar="N", help='The number of its takes per round, with order="round_robin".')
    ] = None,
    url: Url = None,
    as_json_: AsJson = False,
) -> None:
    """Set limits of a lane in place of the tube's.

    An omitted limit keeps its value; `default` resets it to the tube's.
    """
    words = drop_none(
        **({"rate": interval} if "/" in (interval or "") else {"interval": _number("--interval", interval, float)}),
        max_in_flight=_number("--max-in-flight", max_in_flight, int),
        interval_from=interval_from,
        capacity=_number("--capacity", capacity, int),
        burst=_number("--burst", burst, int),
        weight=_number("--weight", weight, int),
    )
    if not words:
        known = "--interval, --max-in-flight, --interval-from, --capacity, --burst and --weight"
        raise Stop(f"give at least one of {known}", Exit.USAGE)
    limits: Facts = {limit: None if value == _DEFAULT else value for limit, value in words.items()}
    with _lane(name, lane_name, url, as_json_=as_json_) as one:
        one.configure(**limits)


def _number(option: str, word: str | None, parse: Callable[[str], float]) -> float | str | None:
    """Parse the value of a limit, or return None or `default`."""
    if word is None or word == _DEFAULT:
        return word
    try:
        return parse(word)
    except ValueError:
        raise Stop(f"{option} {word!r}: must be a number or {_DEFAULT}", Exit.USAGE) from None
