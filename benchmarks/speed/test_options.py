"""A put with options compared with `queue.Queue`'s put, and an ack by id with an ack by task."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from benchmarks.shared.tasks import PAYLOAD, TTL, TTR
from benchmarks.speed.subjects import UTUBES
from benchmarks.speed.table import Comparison, Results

if TYPE_CHECKING:
    from benchmarks.speed.conftest import Scale

PUT_GOAL, ACK_GOAL = 3.5, 1.1
#: Calls written out one after the other, as in a program.
Puts = Callable[[Any, Iterable[int]], object]


def with_pri(put: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        put(PAYLOAD, pri=number % 10)


def with_ttl(put: Any, numbers: Iterable[int]) -> None:
    for _ in numbers:
        put(PAYLOAD, ttl=TTL)


def with_ttl_and_ttr(put: Any, numbers: Iterable[int]) -> None:
    for _ in numbers:
        put(PAYLOAD, ttl=TTL, ttr=TTR)


def with_pri_ttl_and_ttr(put: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        put(PAYLOAD, pri=number % 10, ttl=TTL, ttr=TTR)


def with_utube_and_ttl(put: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        put(PAYLOAD, utube=UTUBES[number % len(UTUBES)], ttl=TTL)


def with_all(put: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        put(PAYLOAD, utube=UTUBES[number % len(UTUBES)], pri=number % 10, ttl=TTL, ttr=TTR)


def plain(put: Any, numbers: Iterable[int]) -> None:
    for _ in numbers:
        put(PAYLOAD)


PUTS: list[tuple[str, str, Puts]] = [
    ("fifottl", "pri", with_pri),
    ("fifottl", "ttl", with_ttl),
    ("fifottl", "ttl and ttr", with_ttl_and_ttr),
    ("fifottl", "pri, ttl and ttr", with_pri_ttl_and_ttr),
    ("utubettl", "utube and ttl", with_utube_and_ttl),
    ("utubettl", "utube, pri, ttl and ttr", with_all),
]


def seconds(puts: Callable[[], object]) -> float:
    begin = perf_counter()
    puts()
    return perf_counter() - begin


@pytest.mark.parametrize(("driver", "options", "puts"), PUTS, ids=[f"{driver}-{what}" for driver, what, _ in PUTS])
def test_puts(driver: str, options: str, puts: Puts, scale: Scale, results: Results) -> None:
    numbers = range(scale.operations)
    items: list[tubes.Item] = []

    def collect(data: str, **options: Any) -> None:
        items.append(tubes.Item(data, **options))

    puts(collect, numbers)
    with tubes.connect() as session:
        tube: Any = session.create_tube("options", driver)
        ours: list[tuple[str, Callable[[], object]]] = [
            ("a put with its own", lambda: puts(tube.put, numbers)),
            ("put_many of Items with their own", lambda: tube.put_many(items)),
        ]
        for _ in range(scale.passes * scale.rounds):
            there: queue.Queue[str] = queue.Queue()
            theirs = seconds(partial(plain, there.put, numbers))
            for what, act in ours:
                comparison = Comparison("options", f"{driver}: {what} {options}", "queue.Queue's put", goal=PUT_GOAL)
                results.compare(comparison, "yardstick", theirs / scale.operations)
                results.compare(comparison, "ours", seconds(act) / scale.operations)
                tube.truncate()


@pytest.mark.parametrize("driver", ["fifo", "fifottl", "utube", "utubettl"])
def test_ack_by_id(driver: str, scale: Scale, results: Results) -> None:
    """Keep the task objects alive on both sides: otherwise only the ack by id would free them."""
    comparison = Comparison("options", f"{driver}: an ack by id", "by task", goal=ACK_GOAL)
    with tubes.connect() as session:
        tube: Any = session.create_tube("options", driver)

        def ack(tasks: Iterable[Any]) -> None:
            done = tube.ack
            for task in tasks:
                done(task)

        for _ in range(scale.passes * scale.rounds):
            for by_id in (False, True):
                for number in range(scale.operations):
                    tube.put(PAYLOAD, **({"utube": f"{number}"} if tube.driver.lane else {}))
                tasks: list[Any] = [tube.take(timeout=0) for _ in range(scale.operations)]
                given = [task.id for task in tasks] if by_id else tasks
                spent = seconds(partial(ack, given)) / scale.operations
                results.compare(comparison, "ours" if by_id else "yardstick", spent)
