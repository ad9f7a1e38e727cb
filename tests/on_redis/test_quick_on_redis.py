"""The fast paths of threads on a server, compared with the general flows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tubes
from tests.memory.test_quick import outcome
from tubes.redis.port.methods import TubePort
from tubes.redis.port.quick import ThreadPort
from tubes.testing import LocalServer
from tubes.values.task import FINISHED

#: Options of some puts, by driver.
OPTIONS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "fifottl": {"pri": 7, "ttl": 5000, "ttr": 900},
    "limfifottl": {"delay": 3000},
    "utube": {"utube": "ü"},
    "utubettl": {"utube": "a", "pri": 3, "ttl": 4000},
}


def facts(result: Any) -> Any:
    """Return the attributes of a result that do not depend on the server or the time."""
    if not isinstance(result, tubes.Task):
        return result
    names = ("id", "state", "data", "attempts", "key", "reason", "pri", "utube", "ttl", "ttr", "context", "created_now")
    return {name: getattr(result, name) for name in (*names, "max_attempts", "saved", "note")}


class Side:
    """A tube and its taken tasks."""

    def __init__(self, url: str, driver: str, *, short: bool) -> None:
        self.queue = tubes.connect(url)
        self.driver = driver
        options: dict[str, Any] = {"capacity": 4} if driver == "limfifottl" else {}
        self.tube = self.queue.create_tube("t", driver, **options)
        port: Any = self.tube._port
        kind: Any = TubePort
        assert type(port) is ThreadPort
        if not short:
            port.__class__ = kind
        self.taken: list[tubes.Task] = []

    def do(self, what: str, number: int) -> Any:
        """Make one call; `number` selects a taken task or an id."""
        tube, taken, port = self.tube, self.taken, self.tube._port
        task: Any = taken[number % len(taken)] if taken else number
        keyed: dict[str, Any] = {
            "key": str(number % 3),
            "on_duplicate": ("keep", "replace", "update", "raise")[number % 4],
        }
        acts: dict[str, Callable[[], Any]] = {
            "put": lambda: tube.put(number),
            "put with options": lambda: tube.put([number], **OPTIONS[self.driver]),
            "put with a key": lambda: tube.put(number, **keyed),
            "put with other options": lambda: tube.put(number, max_attempts=1, context={"n": str(number)}),
            "put with an invalid option": lambda: tube.put(number, pri=-1),
            "put invalid data": lambda: tube.put({number}),
            "take": lambda: tube.take(timeout=0),
            "next": lambda: port.next(task) if taken else None,
            "ack": lambda: tube.ack(task),
            "ack by id": lambda: tube.ack(number),
            "release": lambda: tube.release(task),
            "release later": lambda: tube.release(task, 2000, reason="why"),
            "touch": lambda: tube.touch(task, 10),
            "checkpoint": lambda: tube._checkpoint(task, number, note="n"),
            "bury": lambda: tube.bury(task, "why"),
            "kick": lambda: tube.select("buried", limit=number % 3).kick(),
            "kick one": lambda: tube.kick(task=number),
            "peek": lambda: tube.peek(task),
            "update": lambda: tube.update(task, data=-number),
            "delete": lambda: tube.delete(number),
            "truncate": tube.truncate,
            "pause": lambda: tube.pause(number % 2 * 1000),
            "resume": lambda: tube.pause(0),
            "lose the session": self.lose,
            "count": lambda: (tube.statistics().tasks, tube.statistics().calls),
        }
        result, known = outcome(acts[what])
        if what in ("take", "next") and result is not None:
            taken.append(result)
        return known if result is None else facts(result), [one._take == FINISHED for one in taken]

    def lose(self) -> None:
        """Continue with the session as if the server had forgotten it."""
        port: Any = self.tube._port
        port.session = None


@pytest.mark.sample(8)
@pytest.mark.parametrize("driver", OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_fast_paths_match_the_generic_flows(valkey: LocalServer, driver: str, seed: int) -> None:
    rng = random.Random(f"{driver} {seed}")
    often = ["put", "put with options", "take", "ack", "next"] * 8
    rarely = [
        "put with a key", "put with other options", "put with an invalid option", "put invalid data", "ack by id",
        "release", "release later", "touch", "checkpoint", "bury", "kick", "kick one", "peek", "update", "delete",
        "truncate", "pause", "resume", "resume", "lose the session", "count",
    ]  # fmt: skip
    one, other = (f"{valkey.url}?prefix={name}-{driver}-{seed}" for name in ("short", "long"))
    short, long = Side(one, driver, short=True), Side(other, driver, short=False)
    with short.queue, long.queue:
        for _ in range(250):
            what, number = rng.choice(often + rarely), rng.randrange(30)
            assert short.do(what, number) == long.do(what, number), what
        assert short.do("count", 0) == long.do("count", 0)
