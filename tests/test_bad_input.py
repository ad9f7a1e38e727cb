"""Bad input: a typed error that names the value and the rule, and nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

import tubes
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
from tubes.conformance.faces import Face

BAD_NAMES: list[Any] = ["", "x" * 33, "a b", "a/b", "a:b", "ä", "a\n", "a\0", None, 7, b"a", ["a"]]
BAD_SECONDS: list[Any] = [-1, -0.001, math.nan, math.inf, 1e300, 10**30, "5", True, [1], 1j, b"1"]
BAD_WHOLES: list[Any] = [-1, 1.5, 2**53, "1", True, math.nan, [1]]
BAD_IDS: list[Any] = ["0", -1, 0.5, None, True, 2**60, (0,)]


class Scene:
    """A store with something of everything in it."""

    def __init__(self, face: Face) -> None:
        self.queue = face.connect("memory://", codec="json", clock=tubes.testing.ManualClock())
        self.other = self.queue.session()
        self.ttl = self.queue.create_tube("ttl", "utubettl", ttl=60)
        self.plain = self.queue.create_tube("plain")
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
        """All that could have been changed."""
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
        ("an option nobody knows", OptionNotSupported, lambda s: s.ttl.put(1, colour="red")),
        ("capacity for a task", OptionNotSupported, lambda s: s.ttl.put(1, capacity=5)),
        ("delay for a tube", OptionNotSupported, lambda s: s.queue.create_tube("new", "fifottl", delay=5)),
        ("ttl for a fifo tube", OptionNotSupported, lambda s: s.queue.create_tube("new", ttl=5)),
        ("released with a delay where there is none", OptionNotSupported, lambda s: s.plain.release(0, delay=1)),
        ("touched where there is no ttr", OptionNotSupported, lambda s: s.plain.touch(0, 1)),
        ("data that JSON cannot hold", CodecError, lambda s: s.plain.put({1, 2})),
        ("a number that JSON cannot hold", CodecError, lambda s: s.plain.put(math.nan)),
        ("text that UTF-8 cannot hold", CodecError, lambda s: s.plain.put("\ud800")),
        ("data that holds itself", CodecError, lambda s: s.plain.put(endless())),
        ("ack of another session's task", TaskNotTaken, lambda s: s.plain.ack(s.foreign)),
        ("release of another session's task", TaskNotTaken, lambda s: s.plain.release(s.foreign.id)),
        ("touch of another session's task", TaskNotTaken, lambda s: s.plain.touch(s.foreign, 1)),
        ("ack of a buried task", TaskNotTaken, lambda s: s.plain.ack(1)),
        ("ack of an unknown id", TaskNotTaken, lambda s: s.plain.ack(99)),
        ("bury of an unknown id", TaskNotFound, lambda s: s.plain.bury(99)),
        ("delete of an unknown id", TaskNotFound, lambda s: s.plain.delete(99)),
        ("peek of an unknown id", TaskNotFound, lambda s: s.plain.peek(99)),
        ("a task of another tube", InvalidOption, lambda s: s.ttl.ack(s.foreign)),
        ("put into a closed queue", QueueClosed, lambda s: s.closed_tube.put(1)),
        ("take from a closed queue", QueueClosed, lambda s: s.closed_tube.take(0)),
        ("tube of a closed queue", QueueClosed, lambda s: s.closed.tube("plain")),
        ("create in a closed queue", QueueClosed, lambda s: s.closed.create_tube("new")),
        ("session of a closed queue", QueueClosed, lambda s: s.closed.session()),
        ("identify in a closed queue", QueueClosed, lambda s: s.closed.identify()),
        ("an unknown session", SessionNotFound, lambda s: s.queue.identify("0" * 32)),
        ("no uuid", InvalidOption, lambda s: s.queue.identify("00")),
        ("no uuid at all", InvalidOption, lambda s: s.queue.identify(7)),
        (
            "another driver under a known name",
            DriverExists,
            lambda s: s.queue.register_driver(tubes.Driver("fifo", order="-id")),
        ),
        ("no driver", InvalidOption, lambda s: s.queue.register_driver("fifo")),
        ("if_not_exists that is no bool", InvalidOption, lambda s: s.queue.create_tube("new", if_not_exists="yes")),
        ("force that is no bool", InvalidOption, lambda s: s.plain.drop(force=1)),
        ("callback that cannot be called", InvalidOption, lambda s: s.plain.on_task_change("loud")),
        ("utube that is no string", InvalidOption, lambda s: s.ttl.put(1, utube=["a"])),
        ("utube that is a fraction", InvalidOption, lambda s: s.ttl.put(1, utube=1.5)),
    ]
    return [
        *rows,
        *chain.from_iterable(map(of_names, BAD_NAMES)),
        *chain.from_iterable(map(of_seconds, BAD_SECONDS)),
        *chain.from_iterable(map(of_wholes, BAD_WHOLES)),
        *chain.from_iterable(map(of_ids, BAD_IDS)),
    ]


def of_names(bad: Any) -> list[Row]:
    return [
        (f"tube named {bad!r}", InvalidOption, lambda s: s.queue.create_tube(bad)),
        (f"tube called {bad!r}", InvalidOption, lambda s: s.queue.tube(bad)),
        (f"driver named {bad!r}", InvalidOption, lambda s: s.queue.create_tube("new", bad)),
    ]


def of_seconds(bad: Any) -> list[Row]:
    return [
        (f"put ttl={bad!r}", InvalidOption, lambda s: s.ttl.put(1, ttl=bad)),
        (f"put ttr={bad!r}", InvalidOption, lambda s: s.ttl.put(1, ttr=bad)),
        (f"put delay={bad!r}", InvalidOption, lambda s: s.ttl.put(1, delay=bad)),
        (f"tube ttl={bad!r}", InvalidOption, lambda s: s.queue.create_tube("new", "fifottl", ttl=bad)),
        (f"tube ttr={bad!r}", InvalidOption, lambda s: s.queue.create_tube("new", "fifottl", ttr=bad)),
        (f"take timeout={bad!r}", InvalidOption, lambda s: s.ttl.take(bad)),
        (f"touch {bad!r}", InvalidOption, lambda s: s.ttl.touch(0, bad)),
        (f"release delay={bad!r}", InvalidOption, lambda s: s.ttl.release(0, delay=bad)),
    ]


def of_wholes(bad: Any) -> list[Row]:
    return [
        (f"put pri={bad!r}", InvalidOption, lambda s: s.ttl.put(1, pri=bad)),
        (f"kick {bad!r}", InvalidOption, lambda s: s.ttl.kick(bad)),
    ]


def of_ids(bad: Any) -> list[Row]:
    return [
        (f"ack {bad!r}", InvalidOption, lambda s: s.plain.ack(bad)),
        (f"release {bad!r}", InvalidOption, lambda s: s.plain.release(bad)),
        (f"bury {bad!r}", InvalidOption, lambda s: s.plain.bury(bad)),
        (f"delete {bad!r}", InvalidOption, lambda s: s.plain.delete(bad)),
        (f"peek {bad!r}", InvalidOption, lambda s: s.plain.peek(bad)),
    ]


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


TABLE = table()


@pytest.mark.parametrize(("error", "call"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_input_raises_its_error_and_changes_nothing(
    face: Face, error: type[Exception], call: Callable[[Scene], Any]
) -> None:
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
        None,
        7,
    ],
)
def test_a_url_that_names_no_queue_is_refused(url: Any) -> None:
    with pytest.raises(InvalidOption, match="url="):
        tubes.connect(url)
    with pytest.raises(InvalidOption, match="url="):
        tubes.aio.connect(url)


@pytest.mark.parametrize("codec", ["pickle", "", 7, object()])
def test_a_codec_that_is_none_is_refused(codec: Any) -> None:
    with pytest.raises(InvalidOption, match="codec="):
        tubes.connect(codec=codec)


@pytest.mark.parametrize("session_ttl", BAD_SECONDS)
def test_a_session_ttl_that_is_no_time_is_refused(session_ttl: Any) -> None:
    with pytest.raises(InvalidOption, match="session_ttl="):
        tubes.connect(session_ttl=session_ttl)


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
    ],
)
def test_a_driver_that_makes_no_sense_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidOption):
        make()


def test_errors_survive_pickling() -> None:
    import pickle

    error = TaskNotFound(id=7, tube="mail")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is TaskNotFound
    assert str(copy) == str(error) == "there is no task 7 in tube 'mail': it never was, or it is done."
    lost = pickle.loads(pickle.dumps(tubes.ConnectionLost(url="redis://x", why="gone")))
    assert str(lost) == "the connection to redis://x was lost: gone."
