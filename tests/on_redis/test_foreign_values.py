"""Values written by other programs on a server raise an error or are skipped with a warning; none is executed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import Face
from tubes import TubesError, Unreadable
from tubes.cli.app import app
from tubes.drivers.options import MAX_SECONDS
from tubes.metrics.prometheus import Collector
from tubes.redis import task_codec, validation
from tubes.spark.server.bulk_read import BulkReader
from tubes.spark.server.bulk_write import Writer
from tubes.spark.server.streams import Stream
from tubes.testing import LocalServer


class Place:
    """A separate key space, and a foreign client that may write there."""

    def __init__(self, server: LocalServer) -> None:
        self.prefix = uuid4().hex
        self.url = f"{server.url}?prefix={self.prefix}"
        self.stranger: Any = server.client()
        self.names = f"{self.prefix}:tubes:names"

    def key(self, name: str, part: str = "") -> str:
        return f"{self.prefix}:tubes:{{{name}}}{part and ':'}{part}"


@pytest.fixture
def place(valkey: LocalServer) -> Iterator[Place]:
    made = Place(valkey)
    yield made
    made.stranger.close()


@pytest.fixture
def queue(place: Place) -> Iterator[tubes.Queue]:
    with tubes.connect(place.url) as queue:
        yield queue


LUA = "1) redis.call('SET', 'owned', '1'"

OPTIONS: list[Any] = [
    {"idle": LUA}, {"idle": True}, {"idle": 1.5}, {"idle": 0}, {"idle": -1}, {"idle": 10**30}, {"idle": [1]},
    {"idle": {"a": 1}}, {"idle": None},
    {"backoff": LUA}, {"backoff": []}, {"backoff": [[LUA], 0, 0]}, {"backoff": [[1], LUA, 0]},
    {"backoff": [[1], 0, LUA]}, {"backoff": [[], 0, 0]}, {"backoff": [[1.5], 0, 0]}, {"backoff": [[True], 0, 0]},
    {"backoff": [[1], 2, 0]}, {"backoff": [[1], True, 0]}, {"backoff": [[1], 0, True]}, {"backoff": [[10**40], 0, 0]},
    {"backoff": [[-1], 0, 0]}, {"backoff": [[1], 0]}, {"backoff": [1, 0, 0]}, {"backoff": [[1] * 1001, 0, 0]},
    {"backoff": {"delays": 1}}, {"backoff": "[[1], 0, 0]"}, {"backoff": [[[1]], 0, 0]},
    {"capacity": "5"}, {"capacity": -1}, {"capacity": 2**60}, {"capacity": True}, {"capacity": [5]},
    {"ttl": "x"}, {"ttl": 1.5}, {"ttl": MAX_SECONDS * 10**6 + 1}, {"ttr": {}}, {"pri": -1}, {"pri": "1"},
    {"max_attempts": 0}, {"key_ttl": "1"}, {"max_in_flight": 0}, {"interval": "1 1 1 1"}, {"jitter": LUA},
    {"jitter": 2}, {"order": "other"}, {"order": ["fifo"]}, {"colour": "red"}, {"": 1},
]  # fmt: skip
TEXTS: list[bytes] = [
    b"", b"x", b"[]", b"null", b"7", b'"idle"', b"\xff\xfe", b'{"ttl":' + b"9" * 5000 + b"}", b"[" * 100_000,
    b'{"jitter":NaN}', b'{"jitter":Infinity}', b'{"backoff":[[1],NaN,0]}', b'{"idle":1e999}', b'{"ttl":-Infinity}',
]  # fmt: skip
DRIVER = {
    "name": "utubettl", "options": ["delay", "pri", "ttl", "ttr", "utube"], "order": "pri", "lane": "utube",
    "ttl_spares_taken": True, "rank_lua": None,
}  # fmt: skip
DRIVERS: list[Any] = [
    {}, [], 7, {**DRIVER, "name": "a b"}, {**DRIVER, "name": None}, {**DRIVER, "name": ["x"]},
    {**DRIVER, "name": "mine", "options": "ttl"}, {**DRIVER, "name": "mine", "options": [1]},
    {**DRIVER, "name": "mine", "options": [["ttl"]]}, {**DRIVER, "name": "mine", "options": None},
    {**DRIVER, "name": "mine", "order": LUA}, {**DRIVER, "name": "mine", "order": ["id"]},
    {**DRIVER, "name": "mine", "lane": LUA}, {**DRIVER, "name": "mine", "lane": {}},
    {**DRIVER, "name": "mine", "ttl_spares_taken": "yes"}, {**DRIVER, "more": 1},
    {name: value for name, value in DRIVER.items() if name != "order"},
]  # fmt: skip


def texts(things: list[Any]) -> list[bytes]:
    return [json.dumps(thing).encode() for thing in things]


def refuses(act: Callable[[], object], kind: type[TubesError] = Unreadable) -> str:
    with pytest.raises(kind) as refused:
        act()
    return str(refused.value)


def test_invalid_options_are_refused_and_not_run(
    place: Place, queue: tubes.Queue, face: Face, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    queue.create_tube("bad", "utubettl")
    queue.create_tube("good").put(1)
    for options in (*texts(OPTIONS), *TEXTS):
        with subtests.test(options[:40].decode(errors="replace")):
            place.stranger.hset(place.key("bad"), "options", options)
            place.stranger.delete(place.key("bad", "due"))
            with face.connect(place.url, session_ttl=31.0) as other:
                assert "tube 'bad': its options" in refuses(lambda other=other: other.tube("bad"))  # type: ignore[misc]
                with pytest.raises((Unreadable, tubes.TubeExists)):
                    other.create_tube("bad", "utubettl", if_not_exists=True)
                # Counts do not need the options. Ages do, so then the overview skips the tube.
                assert set(other.admin.overview()) == {"bad", "good"}
                assert other.tubes() == ["bad", "good"]
                place.stranger.zadd(place.key("bad", "due"), {b"\0": 1})
                assert set(other.admin.overview(ages=True)) == {"good"}
                assert place.stranger.exists("owned") == 0


def test_invalid_drivers_are_refused(
    place: Place, queue: tubes.Queue, face: Face, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    queue.create_tube("bad", "utubettl")
    queue.create_tube("good").put(1)
    for driver in (*texts(DRIVERS), *TEXTS):
        with subtests.test(driver[:60].decode(errors="replace")):
            place.stranger.hset(place.key("bad"), "driver", driver)
            with face.connect(place.url, session_ttl=31.0) as other:
                assert "tube 'bad': its driver" in refuses(lambda other=other: other.tube("bad"))  # type: ignore[misc]
                assert "good" in other.tubes()
                assert "good" in other.admin.overview(ages=True)
                with pytest.raises((Unreadable, tubes.TubeExists)):
                    other.create_tube("bad", "nosuch", if_not_exists=True)


NAMES: list[bytes] = [b"\xff", b"a b", b"x" * 256, b"a}:evil{b", b"", "ä".encode(), b"\0", b"..\\a", b"x" * 100_000]


def test_invalid_tube_names_are_skipped_with_one_warning(
    place: Place, queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.create_tube("good", "utube").put(1, utube="a")
    place.stranger.sadd(place.names, *NAMES)
    for _ in range(3):
        assert queue.tubes() == ["good"]
        assert list(queue.admin.overview(ages=True)) == ["good"]
        assert list(queue.statistics()) == ["good"]
    warned = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert repr(b"\xff") in warned[0].getMessage() or "more" in warned[0].getMessage()
    assert len(warned[0].getMessage()) < 3000


def test_keys_that_are_not_tubes_are_skipped(
    place: Place, queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.create_tube("good").put(1)
    for name in ("text", "empty", "parts", "counted", "waited"):
        queue.create_tube(name)
    place.stranger.delete(place.key("text"), place.key("empty"))
    place.stranger.set(place.key("text"), "x")
    place.stranger.hset(place.key("empty"), "x", "y")
    place.stranger.set(place.key("parts", "tasks"), "x")
    place.stranger.hset(place.key("counted"), "takes", "x")
    place.stranger.hset(place.key("waited", "waiting"), "x", "y z")
    assert queue.tubes() == ["counted", "good", "parts", "waited"]
    assert list(queue.admin.overview()) == ["good"]
    for name in ("text", "empty", "parts", "counted", "waited"):
        assert name in caplog.text
    for name in ("text", "empty"):
        with pytest.raises(TubesError):
            queue.tube(name)
    for name in ("parts", "counted", "waited"):
        assert name in refuses(queue.tube(name).statistics)
    for words in ("tubes", "tubes --json", "stats", "stats --json", "top --count 1", "export good"):
        result = CliRunner().invoke(app, [*words.split(), "--url", place.url])
        assert result.exit_code == 0, result.output
        assert "good" in result.output
    registry = CollectorRegistry()
    collector = Collector(queue)
    registry.register(collector)
    exported = generate_latest(registry).decode()
    assert 'tubes_tasks{state="ready",tube="good"} 1.0' in exported
    assert "tubes_up 1.0" in exported
    collector.close()


def test_command_warns_about_skipped_tubes(place: Place, queue: tubes.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Remove the handlers of pytest.
    queue.create_tube("good")
    place.stranger.sadd(place.names, b"\xff")
    result = CliRunner().invoke(app, ["tubes", "--url", place.url])
    assert result.stdout == "good\n"
    assert "warning: left out of the tubes" in result.stderr


def test_error_names_the_key_of_the_wrong_type(place: Place, queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail")
    place.stranger.delete(place.names)
    place.stranger.set(place.names, "x")
    assert "tubes:names" in refuses(queue.tubes)
    place.stranger.set(place.key("mail", "tasks"), "x")
    assert "tube 'mail'" in refuses(tube.statistics)


@pytest.mark.parametrize("field", ["soonest", "waiting", "listening"])
def test_script_reports_a_field_that_is_not_a_number(place: Place, queue: tubes.Queue, field: str) -> None:
    tube = queue.create_tube("mail", "fifottl")
    tube.put(1)
    place.stranger.hset(place.key("mail"), field, "x")
    before = place.stranger.hgetall(place.key("mail"))
    for act in (lambda: tube.put(2), lambda: tube.take(0), tube.statistics):
        assert "tube 'mail'" in refuses(act)
    assert place.stranger.hgetall(place.key("mail")) == before


#: Tasks that are too short, have fields longer than the task, or are not text.
TASKS = [
    b"", b"\0", b"\0" * 7, b"\x80" + b"\0" * 7, b"\x40" + b"\0" * 7 + b"\xff\0\0\1\0",
    b"\x40" + b"\0" * 7 + b"\2\xff\xfe", b"\x80" + b"\0" * 7 + b"\x02\xf0",
]  # fmt: skip


@pytest.mark.parametrize("raw", TASKS, ids=repr)
@pytest.mark.parametrize("driver", ["fifo", "utubettl"])
def test_unreadable_task_is_named_and_does_not_block_others(
    place: Place, queue: tubes.Queue, face: Face, driver: str, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    tube = queue.create_tube("mail", driver)
    for number in range(3):
        tube.put(number, utube=str(number)) if driver == "utubettl" else tube.put(number)
    place.stranger.hset(place.key("mail", "tasks"), "0", raw)
    other = face.connect(place.url, session_ttl=31.0)
    mail = other.tube("mail")

    messages: list[str] = []

    def result_or_error(act: Callable[[], Any]) -> Any:
        """Return the result, or the error that names the task or its tube."""
        try:
            return act()
        except Unreadable as error:
            messages.append(str(error))
            return error

    result_or_error(lambda: mail.peek(0))
    result_or_error(lambda: [*mail.select(limit=10)])
    first = result_or_error(lambda: mail.take(0))
    assert not isinstance(first, tubes.Task) or first.id
    # The bad task does not block others.
    taken = [result_or_error(lambda: mail.take(0)) for _ in range(2)]
    assert {task.id for task in [first, *taken] if hasattr(task, "id")} >= {1}
    rows = [row for part in BulkReader(tube).of(range(3)) for row in part.rows()]
    assert [row.id for row in rows][-2:] == [1, 2]
    assert all("'mail'" in words for words in messages)
    other.close()


def test_take_many_skips_unreadable_tasks(place: Place, queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    tube = queue.create_tube("mail")
    tube.put_many(range(5))
    place.stranger.hset(place.key("mail", "tasks"), "1", b"\0")
    assert [task.id for task in tube.take_many(5, 0)] == [0, 2, 3, 4]
    assert "task 1 of tube 'mail'" in caplog.text


def test_waiting_take_reports_an_unreadable_task(place: Place, face: Face) -> None:
    with tubes.connect(place.url, session_ttl=31.0) as queue:
        tube = queue.create_tube("mail")
        tube.put(1)
        place.stranger.hset(place.key("mail", "tasks"), "0", b"\0")
        tube.put(2)
        other = face.connect(place.url)
        mail = other.tube("mail")
        assert "task 0 of tube 'mail'" in refuses(lambda: mail.take(20))
        task = mail.take(20)
        assert task.data == 2
        other.close()


EVENTS = [
    b"", b"x", b"put", b"put 0 r 0 0 -1", b"put x r 0 0 -1 " + b"\0" * 8, b"put 0 q 0 0 -1 " + b"\0" * 8,
    b"evil 0 r 0 0 -1 " + b"\0" * 8, b"put -5 r 0 0 -1 " + b"\0" * 8, b"put 0 r 0 0 -1 \0", b"\xff \xff",
    b"put 0 r 0 0 " + b"9" * 5000 + b" " + b"\0" * 8, b"put 0 r 0 0 9e9 " + b"\0" * 8,
]  # fmt: skip


def test_listener_ignores_events_not_published_by_tubes(
    place: Place, queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    tube = queue.create_tube("mail")
    events: list[tuple[int, str]] = []
    tube.on_task_change(lambda task, event: events.append((task.id, event)))
    for event in EVENTS:
        place.stranger.publish(place.key("mail", "events"), event)
    tube.put(1)
    assert eventually(lambda: bool(events))
    assert events == [(0, "put")]
    assert "mail" in caplog.text


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: repr(event[:30]))
def test_invalid_event_raises_when_decoded(event: bytes) -> None:
    with pytest.raises(validation.WRONG):
        task_codec.parse_event(event)


def test_shared_session_skips_invalid_tubes(place: Place, face: Face, caplog: pytest.LogCaptureFixture) -> None:
    with tubes.connect(place.url) as queue:
        tube = queue.create_tube("mail")
        tube.put(1)
        assert tube.take(0)
        uuid = queue.admin.identify()
        key = f"{place.prefix}:tubes:session:{uuid}"
        place.stranger.hset(place.key("broken"), mapping={"born": "1", "driver": "x", "options": "{}"})
        for name in (b"\xff", b"a}b", b"x" * 40, b"broken"):
            place.stranger.hset(key, b"tube:" + name, 1)
        other = face.connect(place.url, session_ttl=31.0)
        assert other.admin.identify(uuid) == uuid
        assert other.tube("mail").ack(0).id == 0
        other.close()
    assert not place.stranger.exists(place.key("a}b"))


@pytest.mark.parametrize("token", [b"", b"x", b"s", b"s1", b"s1.2", b"s1.x.1", b"\xff", b"s1.2.3\n"])
def test_invalid_session_token_is_refused(place: Place, token: bytes) -> None:
    with tubes.connect(place.url) as queue, tubes.connect(place.url, session_ttl=31.0) as other:
        queue.create_tube("mail")
        session = other.admin.identify()
        place.stranger.hset(place.key("mail"), f"u{session}", token)
        place.stranger.zadd(place.key("mail", "leases"), {token: "inf"})
        with pytest.raises(TubesError) as refused:
            other.tube("mail")
        assert "mail" in str(refused.value)


@pytest.mark.parametrize("written", [b"x", b"1 2", b"1:x:1", b"\xff:1:1", b"1:2"])
def test_error_names_the_tube_of_a_corrupt_stream(place: Place, written: bytes) -> None:
    with tubes.connect(place.url, session_ttl=60) as queue:
        queue.create_tube("pages").put_many(range(5))
        stream = Stream.open(queue, "pages", "nightly")
        stream.take(1, 3)
        for field in place.stranger.hkeys(place.key("pages", "stream:nightly")):
            if field[:1].isdigit():
                place.stranger.hset(place.key("pages", "stream:nightly"), field, written)
        assert "pages" in refuses(lambda: stream.take(1, 3))
        assert "pages" in refuses(lambda: stream.retake(1))
        queue.admin.detach()


def test_corrupt_write_records_do_not_stop_another_write(
    place: Place, queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    tube = queue.create_tube("rows")
    for name, words in ((b"\xff", b"c 1 6 0"), (b"odd", b"c 1 6"), (b"more", b"\xff 1 6 0"), (b"less", b"c x 6 0")):
        key = place.key("rows", "written:").encode() + name
        place.stranger.hset(key, mapping={"number": "1", "chunks": words})
        place.stranger.zadd(place.key("rows", "sealed"), {name: 1})
    writer = Writer(tube)
    staged = [writer.stage("load-7", chunk) for chunk in writer.chunks([(writer.head({}), [b"1", b"2"])])]
    assert writer.publish("load", 7, staged) == 2
    assert "write 'odd'" in caplog.text


def test_lane_with_invalid_name_is_skipped(place: Place, queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    tube = queue.create_tube("crawl", "utube")
    tube.put(1, utube="a")
    place.stranger.hset(place.key("crawl", "lanes"), b"\xff", place.stranger.hget(place.key("crawl", "lanes"), "a"))
    assert [lane.name for lane in tube.lanes()] == ["a"]
    assert "lanes of tube 'crawl'" in caplog.text


def test_asyncio_client_refuses_invalid_options(place: Place, queue: tubes.Queue) -> None:
    queue.create_tube("mail")
    place.stranger.hset(place.key("mail"), "options", json.dumps({"idle": LUA}))

    async def main() -> None:
        async with tubes.aio.connect(place.url, session_ttl=31.0) as other:
            with pytest.raises(Unreadable):
                await other.tube("mail")

    asyncio.run(main())
    assert place.stranger.exists("owned") == 0
