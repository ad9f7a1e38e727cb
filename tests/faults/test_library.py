"""The Lua library: lost, refused, on a full server, and in several versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import tubes
from tests.contract.bench import eventually
from tests.faults.test_servers import load
from tests.support.internals import port_of
from tests.support.proxy import Proxy
from tests.support.taking import take_task
from tubes.redis.library import text
from tubes.testing import LocalServer

if TYPE_CHECKING:
    from tests.support.ledger import Ledger

#: Rights of a user who may only call functions that an administrator has loaded.
CALLER = ("reset", "on", ">secret", "~*", "&*", "+@all", "-function", "-@scripting", "+fcall")


@pytest.fixture
def own_server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def admin_of(server: LocalServer) -> Any:
    return server.client()


def as_caller(server: LocalServer) -> str:
    """Return the URL of a user who may only call functions."""
    admin_of(server).execute_command("ACL", "SETUSER", "caller", *CALLER)
    return f"unix://caller:secret@{server.socket}"


def runs_functions(tube: Any) -> bool:
    has_functions: bool = port_of(tube).connection.store.server.has_functions
    return has_functions


def load_library(server: LocalServer, version: str = "") -> None:
    """Load the library, or its text as another version."""
    library = text.library().replace(text.version().encode(), (version or text.version()).encode())
    admin_of(server).execute_command("FUNCTION", "LOAD", library)


@pytest.mark.parametrize("knows", [True, False], ids=["known version", "new version"])
def test_full_server_refuses_what_adds_and_runs_what_frees(own_server: LocalServer, knows: bool) -> None:
    admin = admin_of(own_server)
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("t", "utubettl", keep_done=60)
        tube.put_many(tubes.Item(number, utube=f"{number}", key=f"k{number}") for number in range(12))
        queue.create_tube("u", "fifo").put_many(range(4))
    if not knows:
        admin.execute_command("FUNCTION", "FLUSH")
    admin.config_set("maxmemory", 1)
    with tubes.connect(own_server.url) as queue:
        admin.config_set("maxmemory", 0)
        tube, other = queue.tube("t"), queue.tube("u")
        assert runs_functions(tube) is knows
        task, second, third, plain = tube.take(), tube.take(), tube.take(), other.take()
        assert task
        assert second
        assert third
        assert plain
        before = tube.statistics(), list(tube.select())
        admin.config_set("maxmemory", 1)
        for put in (
            lambda: tube.put("x", utube="a"),
            lambda: tube.put("x", utube="a", key="k3"),
            lambda: tube.put("x", utube="a", key="k3", on_duplicate="replace"),
            lambda: tube.put_many([tubes.Item("x", utube="a", key="k3", on_duplicate="replace")]),
            lambda: tube.put_many([tubes.Item("x", utube="a"), tubes.Item("y", utube="b")]),
            lambda: other.put("x"),
        ):
            with pytest.raises(tubes.ServerFull):
                put()
        assert (tube.statistics().tasks, list(tube.select())) == (before[0].tasks, before[1])
        assert task.ack().state == "done"
        assert second.bury("why").state == "buried"
        assert third.release().state == "ready"
        assert plain.ack().state == "done"
        assert tube.select("buried").delete() == 1
        assert take_task(other).ack().state == "done"
        assert tube.statistics().tasks["total"] >= 10
        tube.truncate()
        assert queue.admin.check("t") == queue.admin.check("u") == []
        other.drop(force=True)
        assert queue.tubes() == ["t"]
        admin.config_set("maxmemory", 0)
        assert tube.put("x", utube="a").state == "ready"


@pytest.mark.parametrize("scripted", [False, True], ids=["functions", "scripts"])
def test_flushes_under_load_lose_nothing(own_server: LocalServer, ledger: Ledger, factor: int, scripted: bool) -> None:
    admin = admin_of(own_server)
    if scripted:
        admin.execute_command("ACL", "SETUSER", "default", "-fcall")
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("load", "utubettl")
        with load(tube, ledger, url=own_server.url) as count:
            for _ in range(8 * factor):
                before = count()
                admin.execute_command("SCRIPT" if scripted else "FUNCTION", "FLUSH")
                assert eventually(lambda before=before: count() > before + 50)  # type: ignore[misc]
        assert runs_functions(tube) is not scripted
        assert not ledger.unknown
        ledger.check(tube)


@pytest.mark.parametrize("scripted", [False, True], ids=["functions", "scripts"])
def test_calls_in_flight_of_an_event_loop_send_a_lost_library_once(own_server: LocalServer, scripted: bool) -> None:
    admin = admin_of(own_server)
    if scripted:
        admin.execute_command("ACL", "SETUSER", "default", "-fcall")

    async def main() -> None:
        async with tubes.aio.connect(own_server.url) as queue:
            made = [await queue.create_tube(f"t{number}") for number in range(100)]
            for tube in made:
                await tube.put("first")
            admin.config_resetstat()
            admin.execute_command("SCRIPT" if scripted else "FUNCTION", "FLUSH")
            await asyncio.gather(*(tube.put("second") for tube in made))
            await asyncio.gather(*(tube.take() for tube in made))

    asyncio.run(main())
    stats = admin.info("commandstats")
    sent = stats["cmdstat_eval" if scripted else "cmdstat_function|load"]["calls"]
    assert sent <= 3


def test_right_revoked_in_the_middle_is_recovered_from(own_server: LocalServer) -> None:
    """Packed requests only know FCALL: they are skipped until the library has functions again."""
    admin = admin_of(own_server)
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("t")
        for number in range(3):
            tube.put(number)
        held = take_task(tube, None)
        admin.execute_command("ACL", "SETUSER", "default", "-function|load")
        admin.execute_command("FUNCTION", "FLUSH")
        assert tube.put(3).id == 3
        assert not runs_functions(tube)
        assert held.ack().state == "done"
        following = take_task(tube, None)
        assert (following.data, following.ack().state) == (1, "done")
        assert [tube.put(number).id for number in (4, 5)] == [4, 5]
        assert queue.admin.check("t") == []


@pytest.mark.parametrize("method", ["put", "take", "ack", "put_many"])
def test_each_method_survives_a_change_to_scripts(own_server: LocalServer, method: str) -> None:
    admin = admin_of(own_server)
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(3))
        held = take_task(tube, None)
        admin.execute_command("ACL", "SETUSER", "default", "-fcall")
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: tube.put(3),
            "take": tube.take,
            "ack": held.ack,
            "put_many": lambda: tube.put_many([3]),
        }
        assert calls[method]()
        assert not runs_functions(tube)
        expected = {"put": (4, 1), "take": (3, 2), "ack": (2, 0), "put_many": (4, 1)}[method]
        tasks = tube.statistics().tasks
        assert (tasks["total"], tasks["taken"]) == expected


def test_caller_without_rights_to_load_works_again_once_it_is_loaded(own_server: LocalServer) -> None:
    load_library(own_server)
    admin = admin_of(own_server)
    with tubes.connect(as_caller(own_server)) as queue:
        tube = queue.create_tube("t")
        tube.put(0)
        admin.execute_command("FUNCTION", "FLUSH")
        for call in (lambda: tube.put("lost"), tube.take, lambda: tube.put_many(["lost"])):
            with pytest.raises(tubes.ServerRefused, match=r"(?i)evalsha.*function"):
                call()
        load_library(own_server)
        assert tube.put(1).id == 1
        assert [task.data for task in tube.take_many(5)] == [0, 1]
        assert runs_functions(tube)


def test_versions_live_side_by_side(own_server: LocalServer) -> None:
    """A function of another version serves the same tube, and neither loads over the other."""
    other = "0123456789ab"
    load_library(own_server, other)
    admin = admin_of(own_server)
    with tubes.connect(own_server.url) as queue:
        tube = queue.create_tube("t")
        tube.put_many(range(3))
        key = port_of(tube).shared.key
        assert admin.execute_command("FCALL", f"tubes_{other}_describe", 1, key)
        admin.execute_command("FUNCTION", "DELETE", f"tubes_{text.version()}")
        assert take_task(tube, None).data == 0
        assert admin.execute_command("FCALL", f"tubes_{other}_describe", 1, key)
    listed = str(admin.execute_command("FUNCTION", "LIST"))
    assert all(f"tubes_{version}'" in listed for version in (other, text.version()))


def test_first_process_on_a_fresh_server_loads_in_two_round_trips(own_server: LocalServer) -> None:
    """Each request that the proxy reads is a round trip: the client waits for its reply."""
    counts: list[int] = []
    for _ in range(2):
        requests: list[bytes] = []

        def record(request: bytes, requests: list[bytes] = requests) -> bool:
            requests.append(request)
            return False

        with Proxy(own_server, record) as proxy, tubes.connect(f"{proxy.url}?prefix={uuid4().hex}") as queue:
            queue.create_tube("t").put(1)
        counts.append(sum(request.startswith(b"*") for request in requests))
    first, second = counts
    assert second < first <= second + 2
