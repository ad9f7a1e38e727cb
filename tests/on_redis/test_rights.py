"""Users with only the documented rights: everything works, and the server refuses nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

import tubes
import tubes.aio
from tests.contract.bench import eventually
from tests.support import rights
from tests.support.taking import take_task
from tubes.cli.app import app
from tubes.metrics.prometheus import Collector
from tubes.redis.library.functions import COMMANDS, FUNCTIONS, NEEDED
from tubes.spark.server.bulk_read import BulkReader
from tubes.spark.server.bulk_write import Writer
from tubes.spark.server.streams import Stream
from tubes.testing import LocalServer
from tubes.worker import Worker


def _rows(infos: Any) -> list[dict[str, Any]]:
    return list(infos.values()) if isinstance(infos, dict) else list(infos)


@pytest.fixture
def users(server: LocalServer) -> Iterator[rights.Users]:
    """Return users with access to all keys of a server; check that it refuses nothing."""
    found = rights.users_of(server)
    found.forget()
    yield found
    assert found.refusals() == []


@pytest.mark.full
def test_documented_rights_match_the_scripts() -> None:
    documented = {
        name: {word[1:].upper() for word in words if word.startswith("+")}
        for name, words in rights.documented_rights().items()
    }
    assert documented == rights.required_rights()


def test_opening_a_tube_checks_the_commands_that_functions_run() -> None:
    found = frozenset[str]().union(*(function.commands for function in FUNCTIONS.values()))
    assert found - {"PUBLISH", "SPUBLISH"} <= COMMANDS.keys()
    assert COMMANDS.keys() >= NEEDED


def test_checked_commands_have_the_right_arity(users: rights.Users) -> None:
    infos = users.admin.execute_command("COMMAND", "INFO", *COMMANDS)
    arities = {row["name"].upper(): row["arity"] for row in _rows(infos)}
    assert {name: abs(arity) - 1 for name, arity in arities.items()} == COMMANDS


def test_producer_and_worker_need_only_documented_rights(users: rights.Users) -> None:
    with tubes.connect(users.url("producer")) as queue:
        tube = queue.create_tube("jobs", "utubettl", capacity=30)
        tube.put_many(tubes.Item(number, utube=f"{number % 3}") for number in range(20))
        tube.put("key", key="k")
        tube.put("key", key="k", on_duplicate="replace")
        tube.put("key", key="k", on_duplicate="update")
    with tubes.connect(users.url("worker")) as queue:
        worker = Worker(queue, concurrency=3)
        worker.on("jobs", lambda task: task.data)
        assert worker.run(burst=True).acked == 21
        assert queue.tube("jobs").take(timeout=0.1) is None


@pytest.fixture(params=["functions", "scripts"])
def way(request: pytest.FixtureRequest, users: rights.Users) -> Iterator[str]:
    """Let the users call functions, or only run scripts."""
    words = ["+eval", "+evalsha", "-fcall", "-function|load"]
    back = ["-eval", "-evalsha", "+fcall", "+function|load"]
    for name in ("monitor", "app"):
        if request.param == "scripts":
            users.admin.execute_command("ACL", "SETUSER", name, *words)
    yield request.param
    for name in ("monitor", "app"):
        users.admin.execute_command("ACL", "SETUSER", name, *back)
    users.admin.execute_command("ACL", "LOG", "RESET")


@pytest.mark.usefixtures("way")
def test_a_monitor_changes_nothing(users: rights.Users) -> None:
    with tubes.connect(users.url("producer")) as queue:
        queue.create_tube("jobs", "fifottl").put_many(range(3))
        queue.tube("jobs").put("late", delay=0.001)
        queue.create_tube("lanes", "utube").put("x", utube="a")
    before = users.admin.info("commandstats")
    with tubes.connect(users.url("monitor")) as queue:
        assert queue.tubes() == ["jobs", "lanes"]
        seen = queue.admin.overview(ages=True)
        assert seen["jobs"].oldest_ready_age is not None
        collector = Collector(queue)
        registry = CollectorRegistry()
        registry.register(collector)
        assert registry.get_sample_value("tubes_tasks", {"tube": "lanes", "state": "ready"}) == 1
        collector.close()
    for words in (["stats"], ["top", "--count", "1"]):
        result = CliRunner().invoke(app, words, env={"TUBES_URL": users.url("monitor")})
        assert result.exit_code == 0, result.output
    after = users.admin.info("commandstats")
    for name in ("hset", "zadd", "zrem", "hdel"):
        assert before[f"cmdstat_{name}"]["calls"] == after[f"cmdstat_{name}"]["calls"]


def test_listener_user_receives_events(users: rights.Users) -> None:
    with tubes.connect(users.url("app")) as queue, tubes.connect(users.url("listener")) as other:
        tube = queue.create_tube("t")
        events: list[str] = []
        other.tube("t").on_task_change(lambda task, event: events.append(event))
        tube.put(1)
        assert eventually(lambda: events == ["put"])


def test_spark_user_can_read_write_and_stream(users: rights.Users) -> None:
    with tubes.connect(users.url("spark")) as queue:
        tube = queue.create_tube("t", "fifottl", ttr=60)
        writer = Writer(tube)
        rows = [(writer.head({}), [b"1", b"2", b"3"])]
        writer.publish("load", 1, [writer.stage("load-1", chunk) for chunk in writer.chunks(rows)])
        records = BulkReader(tube)
        assert [row.id for part in records.read_range(0, 10) for row in part.rows()] == records.ids() == [0, 1, 2]
        assert tube.statistics().tasks["ready"] == 3
        stream = Stream.open(queue.session(), "t", "s")
        (chunk,) = stream.take(1, 2)
        stream.claim.check(tube)
        assert stream.claim.skipped(tube) == frozenset()
        assert len(stream.retake(1)) == 1
        assert stream.progress()["taken"] == 2
        assert stream.ack(1) == len(chunk.ids) == 2


@pytest.mark.parametrize("missing", [("FCALL", "EVALSHA"), ("FCALL", "EVAL", "EVALSHA"), ("TIME",)])
def test_connect_reports_missing_rights_to_call_functions(users: rights.Users, missing: tuple[str, ...]) -> None:
    _deny(users, *missing)
    with pytest.raises(tubes.ServerRefused, match=f"(?i){missing[-1]}"):
        tubes.connect(users.url("lacks"))
    users.admin.execute_command("ACL", "LOG", "RESET")


def test_opening_a_tube_reports_all_missing_rights(users: rights.Users) -> None:
    with tubes.connect(users.url("app")) as queue:
        queue.create_tube("t")
    _deny(users, "ZADD", "HDEL")
    with tubes.connect(users.url("lacks")) as queue:
        for name in ("t", "new"):
            with pytest.raises(tubes.ServerRefused, match="no permission to run HDEL, ZADD"):
                queue.create_tube(name, if_not_exists=True)
        with pytest.raises(tubes.ServerRefused, match="no permission to run HDEL, ZADD"):
            queue.tube("t")
    assert users.admin.keys("*new*") == []
    users.admin.execute_command("ACL", "SETUSER", "lacks", "+@all", "resetkeys", "~tubes:{t}", "~tubes:names")
    missing = pytest.raises(tubes.ServerRefused, match="keys that begin with tubes")
    with tubes.connect(users.url("lacks")) as queue, missing:
        queue.tube("t")


def test_user_without_channel_rights_can_still_work(users: rights.Users, caplog: pytest.LogCaptureFixture) -> None:
    with tubes.connect(users.url("app")) as queue:
        queue.create_tube("t").on_task_change(lambda task, event: None)
        users.admin.execute_command("ACL", "SETUSER", "lacks", "reset", "on", ">secret", "~*", "+@all")
        with caplog.at_level(logging.WARNING, "tubes"), tubes.connect(users.url("lacks")) as other:
            tube = other.tube("t")
            ids = [tube.put(number).id for number in range(3)]
            other.create_tube("u")
            assert ids == [0, 1, 2]
            for task in tube.take_many(3):
                task.ack()
        assert [record.getMessage() for record in caplog.records if "PUBLISH" in record.getMessage()][1:] == []
        assert "PUBLISH" in caplog.text
    users.admin.execute_command("ACL", "LOG", "RESET")


def _deny(users: rights.Users, *commands: str) -> None:
    words = ("reset", "on", ">secret", "~*", "&*", "+@all", *(f"-{name}" for name in commands))
    users.admin.execute_command("ACL", "SETUSER", "lacks", *words)


@pytest.mark.parametrize("command", ["zpopmin", "time", "hmget", "zadd"])
def test_tube_is_repaired_after_a_right_was_revoked(users: rights.Users, command: str) -> None:
    with tubes.connect(users.url("app")) as queue:
        tube = queue.create_tube("mail", "fifottl")
        tube.put("to ann")
        users.admin.execute_command("ACL", "SETUSER", "app", f"-{command}")
        try:
            with pytest.raises(tubes.ServerRefused, match=f"(?i){command}|NOPERM|can't run this command"):
                tube.take(timeout=0)
        finally:
            users.admin.execute_command("ACL", "SETUSER", "app", f"+{command}")
            users.admin.execute_command("ACL", "LOG", "RESET")
        take_task(tube).ack()
        assert queue.admin.check("mail") == []


def test_method_without_its_rights_sends_nothing_until_they_are_given(users: rights.Users) -> None:
    _deny(users, "RPUSH", "LREM")
    with tubes.connect(users.url("lacks")) as queue:
        tube = queue.create_tube("t", "fifo")
        before = users.admin.info("commandstats")["cmdstat_fcall"]["calls"]
        with pytest.raises(tubes.ServerRefused, match="no permission to run RPUSH"):
            tube.put("refused")
        assert users.admin.info("commandstats")["cmdstat_fcall"]["calls"] <= before
        _deny(users)
        assert tube.put("done").id == 0
    users.admin.execute_command("ACL", "LOG", "RESET")


def test_coalesced_puts_of_a_user_who_may_not_put_many_are_stored(users: rights.Users) -> None:
    async def run() -> None:
        async with tubes.aio.connect(users.url("lacks")) as queue:
            tube = await queue.create_tube("t")
            await tube.put("first")
            assert [task.id for task in await asyncio.gather(*(tube.put(number) for number in range(3)))] == [1, 2, 3]
            assert [task.data async for task in tube.select()] == ["first", 0, 1, 2]

    _deny(users, "LRANGE")
    asyncio.run(run())
    users.admin.execute_command("ACL", "LOG", "RESET")


def test_task_of_a_refused_waiting_take_is_not_lost(users: rights.Users) -> None:
    with tubes.connect(users.url("app")) as queue, tubes.connect(users.server.url) as other:
        tube, results = queue.create_tube("t"), list[object]()

        def take() -> None:
            try:
                results.append(tube.take(timeout=5))
            except tubes.ServerRefused as error:
                results.append(error)

        waiter = threading.Thread(target=take)
        waiter.start()
        assert eventually(lambda: other.tube("t").statistics().waiting == 1)
        users.admin.execute_command("ACL", "SETUSER", "app", "-zadd")
        try:
            other.tube("t").put("x")
            assert eventually(lambda: bool(users.admin.execute_command("ACL", "LOG")))
        finally:
            users.admin.execute_command("ACL", "SETUSER", "app", "+zadd")
        waiter.join(10)
        (result,) = results
        task = result if isinstance(result, tubes.Task) else other.tube("t").take(timeout=5)
        assert task is not None
        assert task.data == "x"
        assert other.admin.check("t") == []
    users.admin.execute_command("ACL", "LOG", "RESET")


def test_user_of_one_namespace_cannot_access_another(users: rights.Users) -> None:
    keys = ("~tubes:{team@*", "~tubes:namespaces")
    users.admin.execute_command("ACL", "SETUSER", "app", "resetkeys", "resetchannels", *keys, "&tubes:{team@*")
    try:
        with tubes.connect(users.url("app")) as queue, tubes.connect(users.server.url) as admin:
            admin.create_tube("mail").put("not for them")
            with admin.namespace("team2") as other, queue.namespace("team") as team:
                other.create_tube("mail").put("not for them")
                mail = team.create_tube("mail")
                events: list[str] = []
                mail.on_task_change(lambda task, event: events.append(event))
                mail.put("to ann")
                assert mail.take(timeout=5) is not None
                assert eventually(lambda: events == ["put", "take"])
                assert (team.tubes(), team.admin.namespaces()) == (["mail"], ["team", "team2"])
                mail.drop(force=True)
            with queue.namespace("team2") as other:
                for call in (queue.tubes, other.tubes, lambda: queue.tube("mail"), lambda: other.tube("mail")):
                    with pytest.raises(tubes.ServerRefused):
                        call()
    finally:
        users.admin.execute_command("ACL", "SETUSER", "app", "~*", "&*")
        users.admin.execute_command("ACL", "LOG", "RESET")


@pytest.mark.usefixtures("way")
def test_user_of_one_tube_cannot_access_another(users: rights.Users) -> None:
    users.admin.execute_command("ACL", "SETUSER", "app", "resetkeys", "~tubes:{mail}*", "~tubes:names")
    try:
        with tubes.connect(users.url("app")) as queue, tubes.connect(users.server.url) as admin:
            admin.create_tube("other").put("not for them")
            queue.create_tube("mail").put("to ann")
            assert queue.tube("mail").take(timeout=0) is not None
            with pytest.raises(tubes.ServerRefused):
                queue.tube("other")
    finally:
        users.admin.execute_command("ACL", "SETUSER", "app", "~*")
        users.admin.execute_command("ACL", "LOG", "RESET")
