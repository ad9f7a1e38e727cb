"""Bad input raises a typed error that names the value and the rule, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

import tubes
from tests.contract.faces import Face
from tests.support.taking import take_task
from tubes import (
    CodecError,
    DriverExists,
    DriverNotFound,
    InvalidOption,
    OptionNotSupported,
    QueueClosed,
    SessionNotFound,
    TaskNotFound,
    TaskNotTaken,
    TubeExists,
    TubeNotFound,
)

BAD_NAMES: list[Any] = [
    *("", "x" * 256, "a b", "{a", "a}b", "a*", "a\\", "a?", "[a]", "a,b", "a@b", "a%3Ab", "ä", "a\n", "a\0"),
    *(None, 7, b"a", ["a"]),
]
#: Bad names of drivers; the additional ones are valid names of tubes.
BAD_DRIVERS: list[Any] = [*BAD_NAMES, "x" * 33, "a/b", "a:b", "a+b"]
BAD_SECONDS: list[Any] = [
    *(-1, -0.001, math.nan, math.inf, 1e300, 10**30, 10**5000, "5", True, [1], 1j, b"1"),
    *(timedelta(seconds=-1), timedelta.max),
]
BAD_WHOLES: list[Any] = [-1, 1.5, 2**53, 10**5000, "1", True, math.nan, [1]]
BAD_IDS: list[Any] = ["0", -1, 0.5, None, True, 2**60, (0,)]


def shown_as(bad: Any) -> str:
    return "huge" if isinstance(bad, int) and bad > 10**300 else repr(bad)


class Scene:
    """A store with tubes, tasks and sessions of all kinds."""

    def __init__(self, face: Face) -> None:
        self.queue = face.connect("memory://", codec="json", clock=tubes.testing.ManualClock())
        self.other = self.queue.session()
        self.ttl = self.queue.create_tube("ttl", "utubettl", ttl=60)
        self.plain = self.queue.create_tube("plain", "fifo")
        for tube in (self.ttl, self.plain):
            for number in range(4):
                tube.put({"n": number})
            self.taken = tube.take(0)
            tube.bury(1)
        self.foreign = self.other.tube("plain").take(0)
        self.closed = self.queue.session()
        self.closed_tube = self.closed.tube("plain")
        self.closed.close()

    def facts(self) -> Any:
        """Return the whole visible state."""
        peeks = [tube.peek(number) for tube in (self.ttl, self.plain) for number in range(4)]
        return self.queue.tubes(), self.queue.statistics(), peeks


Row = tuple[str, type[Exception], Callable[[Scene], Any]]


def table() -> list[Row]:
    rows: list[Row] = [
        ("unknown driver", DriverNotFound, lambda s: s.queue.create_tube("new", "nosuch")),
        ("unknown tube", TubeNotFound, lambda s: s.queue.tube("nosuch")),
        ("statistics of an unknown tube", TubeNotFound, lambda s: s.queue.statistics("nosuch")),
        ("duplicate tube", TubeExists, lambda s: s.queue.create_tube("plain")),
        ("same name, other driver", TubeExists, lambda s: s.queue.create_tube("plain", "utube", if_not_exists=True)),
        ("same name, unknown driver", TubeExists, lambda s: s.queue.create_tube("plain", "nosuch", if_not_exists=True)),
        ("same name, other options", TubeExists, lambda s: s.queue.create_tube("ttl", "utubettl", if_not_exists=True)),
        ("ttl for fifo", OptionNotSupported, lambda s: s.plain.put(1, ttl=5)),
        ("utube for fifo", OptionNotSupported, lambda s: s.plain.put(1, utube="a")),
        ("an unknown option", OptionNotSupported, lambda s: s.ttl.put(1, colour="red")),
        ("an option without a name", OptionNotSupported, lambda s: s.ttl.put(1, **{"": "a"})),
        ("an option without a name for fifo", OptionNotSupported, lambda s: s.plain.put(1, **{"": "a"})),
        ("capacity for a task", OptionNotSupported, lambda s: s.ttl.put(1, capacity=5)),
        ("delay for a tube", OptionNotSupported, lambda s: s.queue.create_tube("new", "fifottl", delay=5)),
        ("ttl for a fifo tube", OptionNotSupported, lambda s: s.queue.create_tube("new", "fifo", ttl=5)),
        ("release with a delay in a tube without delays", OptionNotSupported, lambda s: s.plain.release(0, delay=1)),
        ("touch in a tube without ttr", OptionNotSupported, lambda s: s.plain.touch(0, 1)),
        ("data that JSON cannot hold", CodecError, lambda s: s.plain.put({1, 2})),
        ("a number that JSON cannot hold", CodecError, lambda s: s.plain.put(math.nan)),
        ("text that UTF-8 cannot hold", CodecError, lambda s: s.plain.put("\ud800")),
        ("data that holds itself", CodecError, lambda s: s.plain.put(endless())),
        ("no tube for a call", InvalidOption, lambda s: s.queue.enqueue_with(tube=["plain"])),
        ("a string for a batch", InvalidOption, lambda s: s.plain.put_many("abc")),
        ("an async generator for a batch", InvalidOption, lambda s: s.plain.put_many(nothing())),
        ("a key_ttl without a key", InvalidOption, lambda s: s.plain.put(1, key_ttl=5)),
        ("on_duplicate without a key", InvalidOption, lambda s: s.plain.put(1, on_duplicate="raise")),
        ("a batch with key_ttl and without keys", InvalidOption, lambda s: s.plain.put_many([1, 2], key_ttl=5)),
        ("an item with key_ttl and no key", InvalidOption, lambda s: s.plain.put_many([tubes.Item(1, key_ttl=5)])),
        ("a backoff after no attempt", InvalidOption, lambda s: tubes.Backoff(1).delay(0)),
        ("a bad item", InvalidOption, lambda s: s.ttl.put_many([1, tubes.Item(2, ttl=-1)])),
        (
            "an item with an option that the driver lacks",
            OptionNotSupported,
            lambda s: s.plain.put_many([tubes.Item(1, ttl=1)]),
        ),
        ("an item that JSON cannot hold", CodecError, lambda s: s.plain.put_many([1, {1, 2}])),
        ("a batch of a task of another tube", InvalidOption, lambda s: s.ttl.ack_many([1, s.foreign])),
        ("one task for a batch", InvalidOption, lambda s: s.plain.delete_many(1)),
        (
            "release of a batch with a delay in a tube without delays",
            OptionNotSupported,
            lambda s: s.plain.release_many([0], 1),
        ),
        ("a batch put into a closed queue", QueueClosed, lambda s: s.closed_tube.put_many([1])),
        ("a batch taken from a closed queue", QueueClosed, lambda s: s.closed_tube.take_many(1, 0)),
        ("ack of another session's task", TaskNotTaken, lambda s: s.plain.ack(s.foreign)),
        ("release of another session's task", TaskNotTaken, lambda s: s.plain.release(s.foreign.id)),
        ("touch of another session's task", TaskNotTaken, lambda s: s.plain.touch(s.foreign, 1)),
        ("ack of a buried task", TaskNotTaken, lambda s: s.plain.ack(1)),
        ("ack of an unknown id", TaskNotTaken, lambda s: s.plain.ack(99)),
        ("bury of an unknown id", TaskNotFound, lambda s: s.plain.bury(99)),
        ("delete of an unknown id", TaskNotFound, lambda s: s.plain.delete(99)),
        ("cancel of an unknown id", TaskNotFound, lambda s: s.plain.cancel(99)),
        ("peek of an unknown id", TaskNotFound, lambda s: s.plain.peek(99)),
        ("a task of another tube", InvalidOption, lambda s: s.ttl.ack(s.foreign)),
        ("a lease of another tube", InvalidOption, lambda s: s.ttl.ack(s.foreign.lease)),
        ("a lease of another store", InvalidOption, lambda s: s.plain.ack(lease_of_another_store())),
        ("a lease that was cut", InvalidOption, lambda s: s.plain.ack_many([s.foreign.lease[:-1]])),
        ("a lease for all tasks", InvalidOption, lambda s: s.plain.ack_many(s.foreign.lease)),
        ("a lease of a wrong type", InvalidOption, lambda s: tubes.Lease(7)),  # type: ignore[arg-type]
        ("the lease of a buried task", TaskNotTaken, lambda s: s.plain.peek(1).lease),
        ("a list of an unknown state", InvalidOption, lambda s: [*s.plain.select("broken")]),
        ("a list of a lane in a tube without lanes", OptionNotSupported, lambda s: [*s.plain.select(lane="a")]),
        ("a selection of an unknown state", InvalidOption, lambda s: s.plain.select("broken")),
        ("a selection of ready tasks with a reason", InvalidOption, lambda s: s.plain.select("ready", reason="late")),
        ("a selection of an empty text", InvalidOption, lambda s: s.plain.select(contains="")),
        ("a selection of a long text", InvalidOption, lambda s: s.plain.select(contains="a" * 257)),
        ("a selection of many bytes", InvalidOption, lambda s: s.plain.select(contains=b"a" * 257)),
        ("a selection of a number in the data", InvalidOption, lambda s: s.plain.select(contains=5)),
        ("a selection of an unnamed function", InvalidOption, lambda s: s.plain.select(function="")),
        ("a selection of a long function", InvalidOption, lambda s: s.plain.select(function="a" * 257)),
        ("a selection of a function in place of its name", InvalidOption, lambda s: s.plain.select(function=print)),
        ("a selection of a negative age", InvalidOption, lambda s: s.plain.select(older_than=-1)),
        ("a selection of a lane in a tube without lanes", OptionNotSupported, lambda s: s.plain.select(lane="a")),
        ("a selection with an empty reason to bury", InvalidOption, lambda s: s.plain.select().bury("")),
        ("a selection with a ttl where there is none", OptionNotSupported, lambda s: s.plain.select().kick(ttl=1)),
        ("a progress callback that cannot be called", InvalidOption, lambda s: s.plain.select().kick(on_progress=1)),
        ("a selection that moves to the same tube", InvalidOption, lambda s: s.plain.select().move_to(s.plain)),
        ("a selection that moves to a name", InvalidOption, lambda s: s.plain.select().move_to("ttl")),
        ("a selection of a closed queue", QueueClosed, lambda s: s.closed_tube.select().count()),
        ("a move to the same tube", InvalidOption, lambda s: s.plain.select("buried").move_to(s.other.tube("plain"))),
        ("a move to a name", InvalidOption, lambda s: s.plain.select("buried").move_to("ttl")),
        ("a move from a closed queue", QueueClosed, lambda s: s.closed_tube.select("buried").move_to(s.ttl)),
        ("a block in a tube without lanes", OptionNotSupported, lambda s: s.plain.lane("a").block(1)),
        ("a lane of a tube without lanes", OptionNotSupported, lambda s: s.plain.lane("a").info()),
        ("a block without words as its reason", InvalidOption, lambda s: s.ttl.lane("a").block(1, reason="")),
        ("a reason of a block that is a number", InvalidOption, lambda s: s.ttl.lane("a").block(1, reason=429)),
        ("limits in a tube without lanes", OptionNotSupported, lambda s: s.plain.lane("a").configure(interval=1)),
        ("lanes of a tube without lanes", OptionNotSupported, lambda s: s.plain.lanes()),
        ("a rate without a unit", InvalidOption, lambda s: s.queue.create_tube("new", rate="500")),
        ("a burst without a rate", InvalidOption, lambda s: s.queue.create_tube("new", burst=5)),
        ("a burst of lanes without an interval", InvalidOption, lambda s: s.ttl.alter(lane_burst=5)),
        ("an interval and a rate of a lane", InvalidOption, lambda s: s.ttl.lane("a").configure(interval=1, rate=1)),
        ("an interval and a lane_rate", InvalidOption, lambda s: s.ttl.alter(interval=1, lane_rate=1)),
        ("a burst of a lane of 0", InvalidOption, lambda s: s.ttl.lane("a").configure(burst=0)),
        ("an interval for a fifo tube", OptionNotSupported, lambda s: s.queue.create_tube("new", "fifo", interval=1)),
        ("a block without a lane", InvalidOption, lambda s: s.ttl.lane(None).block(1)),
        ("a capacity of a lane below 0", InvalidOption, lambda s: s.ttl.lane("a").configure(capacity=-1)),
        ("a lane_capacity that is text", InvalidOption, lambda s: s.ttl.alter(lane_capacity="2")),
        ("a max_in_flight of 0", InvalidOption, lambda s: s.ttl.lane("a").configure(max_in_flight=0)),
        ("an unknown order", InvalidOption, lambda s: s.queue.create_tube("new", "utube", order="lifo")),
        ("a jitter above 1", InvalidOption, lambda s: s.queue.create_tube("new", "utube", jitter=1.5)),
        ("put into a closed queue", QueueClosed, lambda s: s.closed_tube.put(1)),
        ("take from a closed queue", QueueClosed, lambda s: s.closed_tube.take(0)),
        ("tube of a closed queue", QueueClosed, lambda s: s.closed.tube("plain")),
        ("create in a closed queue", QueueClosed, lambda s: s.closed.create_tube("new")),
        ("namespace of a closed queue", QueueClosed, lambda s: s.closed.namespace("team")),
        ("namespaces of a closed queue", QueueClosed, lambda s: s.closed.admin.namespaces()),
        ("session of a closed queue", QueueClosed, lambda s: s.closed.session()),
        ("identify in a closed queue", QueueClosed, lambda s: s.closed.admin.identify()),
        ("an unknown session", SessionNotFound, lambda s: s.queue.admin.identify("0" * 32)),
        ("no uuid", InvalidOption, lambda s: s.queue.admin.identify("00")),
        ("a uuid of a wrong type", InvalidOption, lambda s: s.queue.admin.identify(7)),
        ("a session without a uuid", InvalidOption, lambda s: s.queue.admin.identify(create=True)),
        ("a session of a made-up uuid", InvalidOption, lambda s: s.queue.admin.identify("0" * 32, create=True)),
        ("create of a wrong type", InvalidOption, lambda s: s.queue.admin.identify("0" * 32, create=1)),
        (
            "another driver under a known name",
            DriverExists,
            lambda s: s.queue.admin.register_driver(tubes.Driver("fifo", order="-id")),
        ),
        ("no driver", InvalidOption, lambda s: s.queue.admin.register_driver("fifo")),
        ("if_not_exists of a wrong type", InvalidOption, lambda s: s.queue.create_tube("new", if_not_exists="yes")),
        ("force of a wrong type", InvalidOption, lambda s: s.plain.drop(force=1)),
        ("callback that cannot be called", InvalidOption, lambda s: s.plain.on_task_change("loud")),
        ("utube of a wrong type", InvalidOption, lambda s: s.ttl.put(1, utube=["a"])),
        ("utube that is a fraction", InvalidOption, lambda s: s.ttl.put(1, utube=1.5)),
        ("utube beyond all numbers", InvalidOption, lambda s: s.ttl.put(1, utube=10**5000)),
        ("pri that cannot be shown", InvalidOption, lambda s: s.ttl.put(1, pri=Shy())),
        ("data too deep for JSON", CodecError, lambda s: s.plain.put(deep())),
        ("data that cannot be shown", CodecError, lambda s: s.plain.put(Shy())),
        ("a number too long for JSON", CodecError, lambda s: s.plain.put(10**5000)),
        ("with on a task that is not taken", TaskNotTaken, lambda s: s.plain.peek(3).__enter__()),
        ("a complex timeout", InvalidOption, lambda s: s.plain.take(0j)),
        ("pause of a closed queue's tube", QueueClosed, lambda s: s.closed_tube.pause(1)),
        ("resume of a closed queue's tube", QueueClosed, lambda s: s.closed_tube.pause(0)),
        ("renew in a tube without ttr", OptionNotSupported, lambda s: s.plain.touch_many([0], 1)),
        ("a result of a task that is not kept", InvalidOption, lambda s: s.plain.result(3)),
        ("a result of an unknown task", TaskNotFound, lambda s: s.plain.result(99)),
        ("a result that JSON cannot hold", CodecError, lambda s: s.taken.ack(result=object())),
        ("checkpoint of another session's task", TaskNotTaken, lambda s: s.plain._checkpoint(s.foreign, 1)),
        ("checkpoint of a task without a holder", TaskNotTaken, lambda s: s.plain._checkpoint(1, 1)),
        ("checkpoint with a value that is not JSON", CodecError, lambda s: s.taken.checkpoint({1, 2})),
        ("checkpoint with a large value", InvalidOption, lambda s: s.taken.checkpoint("x" * 65_535)),
        ("checkpoint with a long note", InvalidOption, lambda s: s.taken.checkpoint(note="x" * 1001)),
        ("checkpoint with a note of bytes", InvalidOption, lambda s: s.taken.checkpoint(note=b"x")),
        ("touch by two times", InvalidOption, lambda s: s.ttl.touch(0, 5, ttr=5)),
        ("an empty name of a lane", InvalidOption, lambda s: s.ttl.lane(None)),
        ("a keep_done_max of 0", InvalidOption, lambda s: s.queue.create_tube("new", keep_done_max=0)),
        ("a context of a wrong type", InvalidOption, lambda s: s.plain.put(1, context="trace")),
        ("a context of numbers", InvalidOption, lambda s: s.plain.put(1, context={"trace": 1})),
        ("a take from no tubes", InvalidOption, lambda s: s.queue.take_any([], 0)),
        ("a take from a number", InvalidOption, lambda s: s.queue.take_any([s.plain, 7], 0)),
        ("a take from one name", InvalidOption, lambda s: s.queue.take_any("plain", 0)),
        ("a take from a foreign tube", InvalidOption, lambda s: s.queue.take_any([s.other.tube("plain")], 0)),
        ("a take from an unknown tube", TubeNotFound, lambda s: s.queue.take_any(["plain", "nosuch"], 0)),
        ("fair of a wrong type", InvalidOption, lambda s: s.queue.take_any(["plain"], 0, fair=1)),
        ("a take from tubes of a closed queue", QueueClosed, lambda s: s.closed.take_any(["plain"], 0)),
    ]
    return [
        *rows,
        *chain.from_iterable(map(rows_of_names, BAD_NAMES)),
        *chain.from_iterable(map(rows_of_drivers, BAD_DRIVERS)),
        *chain.from_iterable(map(rows_of_seconds, BAD_SECONDS)),
        *chain.from_iterable(map(rows_of_integers, BAD_WHOLES)),
        *chain.from_iterable(map(rows_of_ids, BAD_IDS)),
    ]


def rows_of_names(bad: Any) -> list[Row]:
    namespaces = [] if bad == "" else [(f"namespace {shown_as(bad)}", InvalidOption, lambda s: s.queue.namespace(bad))]
    return [
        *namespaces,
        (f"tube named {shown_as(bad)}", InvalidOption, lambda s: s.queue.create_tube(bad)),
        (f"tube called {shown_as(bad)}", InvalidOption, lambda s: s.queue.tube(bad)),
    ]


def rows_of_drivers(bad: Any) -> list[Row]:
    return [(f"driver named {shown_as(bad)}", InvalidOption, lambda s: s.queue.create_tube("new", bad))]


def rows_of_seconds(bad: Any) -> list[Row]:
    return [
        (f"put ttl={shown_as(bad)}", InvalidOption, lambda s: s.ttl.put(1, ttl=bad)),
        (f"put ttr={shown_as(bad)}", InvalidOption, lambda s: s.ttl.put(1, ttr=bad)),
        (f"put delay={shown_as(bad)}", InvalidOption, lambda s: s.ttl.put(1, delay=bad)),
        (f"put keep_done={shown_as(bad)}", InvalidOption, lambda s: s.plain.put(1, keep_done=bad)),
        (f"result timeout={shown_as(bad)}", InvalidOption, lambda s: s.plain.result(3, bad)),
        (f"tube ttl={shown_as(bad)}", InvalidOption, lambda s: s.queue.create_tube("new", "fifottl", ttl=bad)),
        (f"tube ttr={shown_as(bad)}", InvalidOption, lambda s: s.queue.create_tube("new", "fifottl", ttr=bad)),
        (f"take timeout={shown_as(bad)}", InvalidOption, lambda s: s.ttl.take(bad)),
        (f"put timeout={shown_as(bad)}", InvalidOption, lambda s: s.ttl.put(1, timeout=bad)),
        (f"put_many timeout={shown_as(bad)}", InvalidOption, lambda s: s.ttl.put_many([1], timeout=bad)),
        (f"take_any timeout={shown_as(bad)}", InvalidOption, lambda s: s.queue.take_any(["plain"], bad)),
        (f"pause {shown_as(bad)}", InvalidOption, lambda s: s.plain.pause(bad)),
        (f"touch {shown_as(bad)}", InvalidOption, lambda s: s.ttl.touch(0, bad)),
        (f"release_many delay={shown_as(bad)}", InvalidOption, lambda s: s.ttl.release_many([0], delay=bad)),
        (f"checkpoint {shown_as(bad)}", InvalidOption, lambda s: s.taken.checkpoint(progress=bad)),
        (f"touch_many {shown_as(bad)}", InvalidOption, lambda s: s.ttl.touch_many([0], bad)),
        (f"take_many timeout={shown_as(bad)}", InvalidOption, lambda s: s.ttl.take_many(1, timeout=bad)),
        (f"release delay={shown_as(bad)}", InvalidOption, lambda s: s.ttl.release(0, delay=bad)),
    ]


def rows_of_integers(bad: Any) -> list[Row]:
    return [
        (f"put pri={shown_as(bad)}", InvalidOption, lambda s: s.ttl.put(1, pri=bad)),
        (f"kick {shown_as(bad)}", InvalidOption, lambda s: s.ttl.select("buried", limit=bad).kick()),
    ]


def rows_of_ids(bad: Any) -> list[Row]:
    return [
        (f"ack {shown_as(bad)}", InvalidOption, lambda s: s.plain.ack(bad)),
        (f"release {shown_as(bad)}", InvalidOption, lambda s: s.plain.release(bad)),
        (f"bury {shown_as(bad)}", InvalidOption, lambda s: s.plain.bury(bad)),
        (f"delete {shown_as(bad)}", InvalidOption, lambda s: s.plain.delete(bad)),
        (f"cancel {shown_as(bad)}", InvalidOption, lambda s: s.plain.cancel(bad)),
        (f"peek {shown_as(bad)}", InvalidOption, lambda s: s.plain.peek(bad)),
        (f"result {shown_as(bad)}", InvalidOption, lambda s: s.plain.result(bad)),
        (f"again {shown_as(bad)}", InvalidOption, lambda s: s.plain.kick(task=bad)),
    ]


def deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return inner


def lease_of_another_store() -> str:
    with tubes.connect() as queue:
        tube = queue.create_tube("plain")
        tube.put(1)
        task = take_task(tube)
        return task.lease


async def nothing() -> AsyncIterator[int]:
    return
    yield


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not shown")


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.full
def test_bad_input_raises_its_error_and_changes_nothing(face: Face, subtests: pytest.Subtests) -> None:
    for name, error, call in table():
        with subtests.test(name):
            scene = Scene(face)
            before = scene.facts()
            with pytest.raises(error) as caught:
                call(scene)
            assert type(caught.value) is error
            assert isinstance(caught.value, tubes.TubesError)
            assert len(str(caught.value)) > 10
            assert scene.facts() == before
            scene.other.close()
            scene.queue.close()


#: Error texts: they name the call and the values in the units of the caller.
SAYINGS: list[tuple[Callable[[Scene], Any], str]] = [
    (lambda s: s.queue.tube("plian"), "there is no tube 'plian'; did you mean 'plain'?"),
    (lambda s: s.queue.tube("mail"), "there is no tube 'mail': create it with create_tube"),
    (lambda s: s.queue.create_tube("new", "fifotl"), "limfifottl, utube, utubettl; did you mean 'fifottl'?"),
    (lambda s: s.ttl.put(1, dealy=5), "ttl, ttr, utube; did you mean 'delay'?"),
    (
        lambda s: s.queue.create_tube("new", "fifo", atempts=5),
        "key_ttl, max_attempts, partitions, rate; did you mean 'max_attempts'?",
    ),
    (lambda s: s.ttl.alter(max_atempts=5), "did you mean 'max_attempts'?"),
    (lambda s: s.queue.create_tube("new", "FIFO"), "limfifottl, utube, utubettl; did you mean 'fifo'?"),
    (lambda s: s.ttl.put(1, lane="a"), "ttl, ttr, utube; did you mean 'utube'?"),
    (lambda s: s.ttl.put(1, priority=1), "did you mean 'pri'?"),
    (lambda s: tubes.connect("redis://localhost?sesion_ttl=3"), "username; did you mean 'session_ttl'?"),
    (lambda s: tubes.connect("valkey://localhost"), "redis+cluster://; did you mean 'redis'?"),
    (lambda s: tubes.connect("redis://localhost:abc"), "must have hosts such as host:6379, with a port up to 65535"),
    (lambda s: s.plain.lane("a").block(1), "driver 'fifo' has no lanes: use utube, utubettl,"),
    (lambda s: s.plain.lane("a").configure(interval=1), "driver 'fifo' has no lanes"),
    (lambda s: s.plain.lanes(), "driver 'fifo' has no lanes"),
    (
        lambda s: s.plain.select("buried", limit=1).kick(ttl=5),
        "driver 'fifo' has no option 'ttl': kick accepts attempts",
    ),
    (
        lambda s: s.plain.put(1, keep_done_max=5),
        "'fifo' has no option 'keep_done_max' of tasks: it is an option of their tube",
    ),
    (lambda s: s.plain.update(0, pri=5), "driver 'fifo' has no option 'pri': update accepts data"),
    (lambda s: s.ttl.take_many(0), "limit=0: must be from 1 to 100000"),
    (lambda s: s.ttl.take_many(100_001), "limit=100001: must be from 1 to 100000"),
    (lambda s: s.ttl.put(1, max_attempts=0), "max_attempts=0: must be from 1 to 1048574"),
    (lambda s: s.ttl.put(1, max_attempts=-1), "max_attempts=-1: must be from 1 to 1048574"),
    (lambda s: s.ttl.put_many("ab"), "items='ab': must be an iterable of items: put a single one in a list"),
    (lambda s: s.ttl.put_many(nothing()), "must be collected first: put_many([item async for item in items])"),
    (lambda s: s.ttl.put(1, key_ttl=5), "key_ttl=5: is only for a put with a key"),
    (
        lambda s: s.queue.create_tube("ttl", "utubettl", ttl=60, ttr=2, if_not_exists=True),
        "tube 'ttl' exists already: with ttr=None, not 2.0",
    ),
    (
        lambda s: s.queue.create_tube("ttl", "utubettl", ttl=60, backoff=[1, 2], if_not_exists=True),
        "tube 'ttl' exists already: with backoff=None, not [1.0, 2.0]",
    ),
]


def test_error_names_the_argument_of_the_caller(face: Face, subtests: pytest.Subtests) -> None:
    for call, saying in SAYINGS:
        with subtests.test(saying):
            scene = Scene(face)
            with pytest.raises(tubes.TubesError) as caught:
                call(scene)
            assert saying in str(caught.value)
            scene.other.close()
            scene.queue.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory:/x",
        "memory://a/b",
        "memory://?x=1",
        "memory://a b",
        "memory://" + "x" * 33,
        "ftp://x",
        "memory://a\nb",
        "memory://[",
        "memory://\u2100",
        None,
        7,
    ],
)
def test_a_url_that_names_no_queue_is_refused(url: Any) -> None:
    with pytest.raises(InvalidOption, match="url="):
        tubes.connect(url)
    with pytest.raises(InvalidOption, match="url="):
        tubes.aio.connect(url)


@pytest.mark.parametrize("codec", ["pickle", "", 7, object(), tubes.JsonCodec])
def test_bad_codec_is_refused(codec: Any) -> None:
    with pytest.raises(InvalidOption, match="codec="):
        tubes.connect(codec=codec)


@pytest.mark.parametrize("session_ttl", BAD_SECONDS, ids=shown_as)
def test_bad_session_ttl_is_refused(session_ttl: Any) -> None:
    with pytest.raises(InvalidOption, match="session_ttl="):
        tubes.connect(session_ttl=session_ttl)


@pytest.mark.parametrize("session_ttl", [0, 0.000001, 0.0999])
def test_session_ttl_too_small_for_a_server_is_refused(session_ttl: float) -> None:
    for connect in (tubes.connect, tubes.aio.connect):
        with pytest.raises(InvalidOption, match=r"session_ttl=.*at least 0\.1 seconds"):
            connect("redis://nowhere", session_ttl=session_ttl)
    tubes.connect(session_ttl=session_ttl).close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: tubes.Driver(""),
        lambda: tubes.Driver("x", options={"colour"}),
        lambda: tubes.Driver("x", order="newest"),
        lambda: tubes.Driver("x", order="pri"),
        lambda: tubes.Driver("x", lane="utube"),
        lambda: tubes.Driver("x", options={"ttl"}, lane="ttl"),
        lambda: tubes.Driver("x", order="-id", rank=lambda task: 0),
        lambda: tubes.Driver("x", rank_lua="task.id"),
        lambda: tubes.Driver("x", rank=lambda task: 0, rank_lua=5),  # type: ignore[arg-type]
        lambda: tubes.Driver("x", rank=5),  # type: ignore[arg-type]
        lambda: tubes.Driver("x", order=[]),  # type: ignore[arg-type]
        lambda: tubes.Driver("x", options=5),  # type: ignore[arg-type]
        lambda: tubes.Driver("x", options=[[]]),  # type: ignore[list-item]
        lambda: tubes.Driver("x", options="pri", order="pri"),
        lambda: tubes.Driver("x", ttl_spares_taken="no"),  # type: ignore[arg-type]
        lambda: tubes.Driver("x", options={""}, lane=""),
        lambda: tubes.Driver("x", options={"data"}, lane="data"),
        lambda: tubes.Driver("x", options={"self"}, lane="self"),
        lambda: tubes.Driver("x", options={"capacity"}, lane="capacity"),
        lambda: tubes.Driver("x", options=[5], lane=5),  # type: ignore
    ],
)
def test_bad_driver_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidOption):
        make()


@pytest.mark.parametrize("clock", [5, "now", [0]])
def test_bad_clock_is_refused(clock: Any) -> None:
    with pytest.raises(InvalidOption, match="clock="):
        tubes.connect(clock=clock)


def test_store_refuses_a_second_codec() -> None:
    class Own(tubes.JsonCodec):
        pass

    with tubes.connect("memory://one-codec", codec=Own()), tubes.connect("memory://one-codec"):
        for other in (Own(), "json", "raw"):
            with pytest.raises(InvalidOption, match="another codec"):
                tubes.connect("memory://one-codec", codec=other)


@pytest.mark.parametrize("codec", ["json", "raw"])
def test_codec_error_shows_type_and_beginning_of_the_data(codec: str) -> None:
    with tubes.connect(codec=codec) as queue:
        tube = queue.create_tube("t")
        with pytest.raises(CodecError) as refused:
            tube.put({"user": "ann", "token": f"{'-' * 80}hunter", "more": object()})
    assert f"codec '{codec}' cannot encode dict {{'user': 'ann', 'token': '---" in str(refused.value)
    assert "hunter" not in str(refused.value)


def test_codec_error_names_an_error_without_a_text() -> None:
    class Alarm(Exception):
        pass

    class Interrupted:
        def encode(self, data: Any) -> bytes:
            raise Alarm  # As a signal handler may do.

        def decode(self, raw: bytes) -> Any:
            return raw

    with tubes.connect(codec=Interrupted()) as queue:
        tube = queue.create_tube("t")
        with pytest.raises(CodecError, match=r"cannot encode int 5: Alarm$") as raised:
            tube.put(5)
        assert isinstance(raised.value.__cause__, Alarm)


def test_errors_of_a_custom_codec_become_codec_errors() -> None:
    class Picky:
        def encode(self, data: Any) -> bytes:
            return bytes(data["raw"])

        def decode(self, raw: bytes) -> Any:
            raise LookupError("lost")

    with tubes.connect(codec=Picky()) as queue:
        tube = queue.create_tube("t")
        with pytest.raises(CodecError, match="cannot encode"):
            tube.put({})
        task = tube.put({"raw": b"x"})
        with pytest.raises(CodecError, match="lost"):
            _ = task.data
        assert [(listed.id, listed.state) for listed in tube.select()] == [(task.id, "ready")]


def test_copy_returns_the_same_task_and_pickle_is_refused() -> None:
    import copy
    import pickle

    with tubes.connect() as queue:
        task = queue.create_tube("t").put([1])
        assert copy.copy(task) is copy.deepcopy(task) is task
        with pytest.raises(TypeError, match="belongs to its session"):
            pickle.dumps(task)


def test_errors_survive_pickling() -> None:
    import pickle

    error = TaskNotFound(id=7, tube="mail")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is TaskNotFound
    assert str(copy) == str(error) == "there is no task 7 in tube 'mail': it never existed, or it is done"
    lost = pickle.loads(pickle.dumps(tubes.ConnectionLost(url="redis://x", why="gone")))
    assert str(lost) == "there is no connection to redis://x: gone"


@pytest.mark.parametrize("why", ["Connection refused", "Connection refused.", "x" * 600])
def test_a_message_ends_without_a_full_stop(why: str) -> None:
    message = str(tubes.ConnectionLost(url="redis://x", why=why))
    text = f"{why[:500]}..." if len(why) > 500 else why.removesuffix(".")
    assert message == f"there is no connection to redis://x: {text}"


def test_release_refused_for_its_delay_does_not_change_the_priority() -> None:
    with tubes.connect() as queue:
        tube = queue.create_tube("t", tubes.Driver("by-pri", options={"pri"}, order="pri,id"))
        tube.put(1, pri=5)
        task = take_task(tube)
        with pytest.raises(tubes.OptionNotSupported):
            task.release(delay=2, pri=300)
        assert tube.peek(task.id).pri == 5
