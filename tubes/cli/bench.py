"""`tubes bench`: measure the speed of a server from this machine."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Annotated
from uuid import uuid4

import typer

import tubes
from tubes.backend.url import redact_url
from tubes.cli.columns import Column, Grid
from tubes.cli.common import CONNECT_TIMEOUT, Url, complete_drivers, place_of
from tubes.cli.exits import say
from tubes.cli.show import console, print_json, text

#: Signals that by default would end the process without dropping its tube.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: Maximum tasks per batch call.
_BATCH = 500
#: Maximum data size of a task and of a batch, in characters: they must fit into memory several times.
_MAX_SIZE = 10_000_000


def bench(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="The number of tasks.")] = 2000,
    size: Annotated[
        int, typer.Option("--size", min=0, max=_MAX_SIZE, help="The number of characters of each task's data.")
    ] = 100,
    driver: Annotated[
        str, typer.Option("--driver", help="The driver of the tube.", autocompletion=complete_drivers)
    ] = "fifottl",
    url: Url = None,
    as_json_: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each method, for programs.")
    ] = False,
) -> None:
    """Measure how fast put, take and ack are.

    It measures single tasks and batches in a temporary tube. --url memory:// measures the backend in memory.
    """
    place = place_of(url)
    with _exit_on_signals(), tubes.connect(place, codec="json", connect_timeout=CONNECT_TIMEOUT) as queue:
        tube = queue.create_tube(f"bench-{uuid4().hex[:12]}", driver)
        try:
            results = [_result(method, spans, per) for method, spans, per in _measure(tube, count, "x" * size)]
        finally:
            tube.drop(force=True)
    if as_json_:
        for result in results:
            print_json(result)
        return
    grid = Grid([Column("method"), *(Column(name, right=True) for name in ("tasks/s", "median", "99 %"))])
    for result in results:
        spans = (f"{result['median_ms']:.3f} ms", f"{result['p99_ms']:.3f} ms")
        grid.add_row(text(result["method"]), text(f"{result['per_second']:,.0f}"), *map(text, spans))
    say(f"{count} tasks of {size} characters, {driver}, one thread, {redact_url(place)}")
    console().print(grid)


@contextmanager
def _exit_on_signals() -> Generator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit in the block, so that its `finally` clauses run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    handlers = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _timed(spans: list[float]) -> Generator[None]:
    """Append the duration of the block, in seconds."""
    start = time.perf_counter()
    yield
    spans.append(time.perf_counter() - start)


def _measure(tube: tubes.Tube, count: int, data: str) -> Iterator[tuple[str, list[float], int]]:
    """Yield results: the method, the seconds of each call, and the number of tasks per call."""
    items = [tubes.Item(data, utube=str(number) if tube.driver.lane else None) for number in range(count)]
    puts, takes, acks = list[float](), list[float](), list[float]()
    for item in items:
        with _timed(puts):
            tube.put(data, **item.options)
    for _ in range(count):
        with _timed(takes):
            task = tube.take(timeout=0)
        assert task is not None
        with _timed(acks):
            task.ack()
    yield from (("put", puts, 1), ("take", takes, 1), ("ack", acks, 1))
    size = max(1, min(_BATCH, count, _MAX_SIZE // max(len(data), 1)))
    puts, takes, acks = list[float](), list[float](), list[float]()
    for start in range(0, count - size + 1, size):
        with _timed(puts):
            tube.put_many(items[start : start + size])
        with _timed(takes):
            tasks = tube.take_many(size)
        with _timed(acks):
            tube.ack_many(tasks)
    yield from ((f"put_many {size}", puts, size), (f"take_many {size}", takes, size), (f"ack_many {size}", acks, size))


def _result(method: str, spans: list[float], per: int) -> dict[str, object]:
    ordered = sorted(spans)
    return {
        "method": method,
        "per_second": len(spans) * per / max(sum(spans), 1e-9),
        "median_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[int((len(ordered) - 1) * 0.99)] * 1000,
    }


COMMANDS: tuple[Callable[..., None], ...] = (bench,)
