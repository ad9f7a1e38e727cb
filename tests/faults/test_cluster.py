"""A real cluster: the contract, moving slots, and failing nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
import redis
from redis.exceptions import TryAgainError
from typer.testing import CliRunner

import tubes
from tests.contract.bench import eventually
from tests.contract.faces import AioFace, SyncFace
from tests.contract.failures import Failures
from tests.contract.keys import UniqueKeys
from tests.contract.lanes import Lanes
from tests.contract.looking import Looking
from tests.contract.ownership import Ownership
from tests.contract.queues import Queues
from tests.contract.sessions import Sessions
from tests.contract.updates import Updates
from tests.faults.test_servers import load
from tests.support.cluster import Cluster
from tests.support.internals import port_of
from tests.support.on_server import OnServer
from tests.support.taking import take_task
from tubes.backend.flow import run
from tubes.cli.app import app
from tubes.redis.library import text
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.wire import Wire, Word
from tubes.spark.server.bulk_read import BulkReader
from tubes.spark.server.bulk_write import Writer
from tubes.spark.server.streams import Stream

if TYPE_CHECKING:
    from tests.support.ledger import Ledger
    from tubes.redis.connection import RedisConnection


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True, scope="module")
def _cluster(cluster: Cluster) -> None:
    OnCluster.url = cluster.url


class OnCluster(OnServer):
    """Tubes on the nodes that own the slots of their names."""


class TestQueues(OnCluster, Queues):
    faces = (SyncFace,)
    driver = "utubettl"


@pytest.mark.full
class TestFifo(OnCluster, Ownership, Lanes, Sessions, Queues):
    faces = (AioFace,)
    driver = "fifo"


@pytest.mark.full
class TestUtubeTtl(OnCluster, Ownership, Lanes, Sessions):
    faces = (SyncFace,)
    driver = "utubettl"


@pytest.mark.full
class TestFailures(OnCluster, Ownership, Lanes, Sessions, Queues, Failures, UniqueKeys, Updates, Looking):
    faces = (AioFace,)
    driver = "fifottl"


def test_keys_leave_nothing_on_any_node(cluster: Cluster) -> None:
    prefix = uuid4().hex
    with tubes.connect(f"{cluster.url}?prefix={prefix}") as queue:
        made = [queue.create_tube(f"tube{number}", key_ttl=50) for number in range(5)]
        for tube in made:
            for how in ("keep", "replace"):
                assert tube.put("x", key="k", on_duplicate=how).created_now
            tube.bury(1, "why")
            tube.select("buried", limit=1).kick(attempts=1)
            take_task(tube).ack()
            assert tube.put("x", key="k").state == "done"
            assert tube.put("x", key="l", key_ttl=0).delete().state == "done"
        for tube in made:
            tube.drop()
    assert not [key for client in cluster.clients for key in client.keys(f"*{prefix}*") if b"tube" in key]


@pytest.mark.full
def test_bulk_writes_reads_and_streams_work_on_every_node(cluster: Cluster) -> None:
    for name in ("a", "b", "c", "d"):
        with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
            writer = Writer(queue.create_tube(name))
            chunks = list(writer.chunks([(writer.head({}), [b"%d" % number for number in range(50)])], 20))
            writer.publish("w", 1, [writer.stage("w-1", chunk) for chunk in chunks])
            assert sum(part.size for part in BulkReader(writer.tube).read_range(0, 100)) == 50
            queue.admin.detach()
        with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
            queue.create_tube(name).put_many(range(50))
            stream = Stream.open(queue, name, "s")
            assert sum(len(chunk.ids) for chunk in stream.take(1, 50)) == 50
            assert stream.ack(1) == 50


def test_tubes_of_all_nodes_work_at_once(cluster: Cluster) -> None:
    names = [f"tube{number}" for number in range(12)]

    async def main() -> None:
        async with tubes.aio.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
            made = [await queue.create_tube(name) for name in names]
            await asyncio.gather(*(tube.put(number) for tube in made for number in range(20)))
            for tube in made:
                tasks = await asyncio.gather(*(tube.take() for _ in range(20)))
                assert sorted(task.data for task in tasks if task is not None) == list(range(20))
            assert await queue.tubes() == sorted(names)
        assert len({cluster.owner(cluster.slot(f"{{{name}}}")) for name in names}) == 3

    asyncio.run(main())


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("face", [SyncFace, AioFace], ids=lambda face: face.name)
def test_take_any_waits_on_tubes_of_all_nodes(cluster: Cluster, face: type[Any]) -> None:
    names = ("tube0", "tube1", "tube2", "tube3", "tube4")
    assert len({cluster.owner(cluster.slot(f"{{{name}}}")) for name in names}) == 3
    url, there = f"{cluster.url}?prefix={uuid4().hex}", face()
    with tubes.connect(url, session_ttl=31.0) as putting, there.connect(url) as queue:
        made = [putting.create_tube(name) for name in names]
        for number, tube in enumerate(made):
            call = there.begin(queue, "take_any", list(names), timeout=60)
            tube.put(number)
            task = call.result(20)
            assert (task.tube, task.data, task.attempts) == (tube.name, number, 1)
            task.ack()
        assert eventually(lambda: not any(tube.statistics().waiting for tube in made))
        assert [tube.statistics().calls["take"] for tube in made] == [1] * 5
        call = there.begin(queue, "take_any", list(names))
        made[3].drop(force=True)
        with pytest.raises(tubes.TubeNotFound):
            call.result(20)
    there.close()


def test_a_tube_whose_slot_moves_loses_nothing(cluster: Cluster, ledger: Ledger, factor: int) -> None:
    url = f"{cluster.url}?prefix={uuid4().hex}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load", "utubettl")
        slot = cluster.slot("{load}")
        with load(tube, ledger, url=url) as count:
            for _ in range(6 * factor):
                before = count()
                cluster.move(slot)
                assert eventually(lambda before=before: count() > before + 20)  # type: ignore[misc]
        assert not ledger.unknown
        ledger.check(tube)


@contextmanager
def moving(cluster: Cluster, slot: int) -> Generator[Any]:
    """Begin to move a slot without moving a key; yield a client of its node."""
    node = cluster.clients[cluster.owner(slot)]
    other = cluster.clients[(cluster.owner(slot) + 1) % 3].execute_command("CLUSTER", "MYID").decode()
    node.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", other)
    try:
        yield node
    finally:
        node.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


def send(node: Any, packed: bytes) -> Any:
    """Send a packed command without following redirects; return its reply."""
    with node.client() as client:
        client.connection.send_packed_command([packed])
        return client.connection.read_response()


def test_no_function_runs_on_a_tube_whose_slot_is_moving(cluster: Cluster) -> None:
    """A function that ran would fail at the first key that has moved, in the middle of its work."""
    with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
        tube = queue.create_tube("t", "utubettl")
        tube.put(1)
        port = port_of(tube)
        key = port.shared.key
        with moving(cluster, cluster.slot("{t}")) as node:
            before = node.dump(key)
            for function in FUNCTIONS.values():
                for session in (None, port.session) if "alone" not in function.traits else ():
                    call = ScriptCall(function, key, ("1",) * 9, session)
                    call.begin(0)
                    with pytest.raises(TryAgainError):
                        send(node, call.pack(port.connection.store.server))
            assert node.dump(key) == before
        assert take_task(tube).data == 1


def test_functions_of_no_tube_run_while_their_slot_is_moving(cluster: Cluster) -> None:
    """They use one key, which the slot still has: the server would refuse any other."""
    words: dict[str, tuple[Word, ...]] = {
        "ping": (),
        "tube_names": ("add", "t"),
        "rate": (60 * 10**6, 60 * 10**6, 1),  # The key lives for a minute.
        "session": ("publish", 10**6, "", "t", 10**6, "c"),
    }
    assert words.keys() == {name for name, function in FUNCTIONS.items() if "alone" in function.traits}
    with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
        store = cast("RedisConnection", queue._connection).store
        for name, args in words.items():
            key = f"{store.prefix}:{name}"
            if name == "ping":  # It may have any key.
                store._channel.request(key, "SET", key, "")
            run(store.run_plain_script(name, key, *args), store._channel.call)
            with moving(cluster, cluster.slot(key)) as node:
                send(node, ScriptCall(FUNCTIONS[name], key, args).pack(store.server))
                node.delete(key)


def test_an_event_loop_whose_tubes_slot_moves_loses_nothing(cluster: Cluster, ledger: Ledger, factor: int) -> None:
    url = f"{cluster.url}?prefix={uuid4().hex}"

    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("load")

            async def work(name: int) -> None:
                number = 0
                while not stop.is_set():
                    ledger.record_put(f"{name}.{number}", (await tube.put(f"{name}.{number}")).id)
                    number += 1
                    task = await tube.take()
                    assert task is not None
                    ledger.record_take(task.id, task.attempts, task.data)
                    await task.ack()
                    ledger.record_done(task.id, task.attempts)

            stop = asyncio.Event()
            workers = [asyncio.create_task(work(name)) for name in range(10)]
            for _ in range(3 * factor):
                await asyncio.to_thread(cluster.move, cluster.slot("{load}"))
                await asyncio.sleep(0.05)
            stop.set()
            await asyncio.gather(*workers)

    asyncio.run(main())
    with tubes.connect(url) as queue:
        ledger.check(queue.tube("load"))


def test_node_without_the_library_gets_it_with_the_first_call(cluster: Cluster) -> None:
    """A node that is added to a cluster has no functions."""
    with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
        made = [queue.create_tube(f"tube{number}") for number in range(8)]
        for client in cluster.clients:
            client.execute_command("FUNCTION", "FLUSH")
        assert [tube.put(number).id for number, tube in enumerate(made)] == [0] * 8
        assert all(port_of(tube).connection.store.server.has_functions for tube in made)
    for client in cluster.clients:
        client.execute_command("FUNCTION", "FLUSH")
    result = CliRunner().invoke(app, ["library", "--load", "--url", cluster.url])
    assert result.exit_code == 0, result.output
    assert all(
        f"tubes_{text.version()}" in str(client.execute_command("FUNCTION", "LIST")) for client in cluster.clients
    )


def test_leases_of_all_tubes_are_renewed_in_one_round_trip_per_node(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tubes.connect(f"{cluster.url}?prefix={uuid4().hex}") as queue:
        made = [queue.create_tube(f"tube{number}") for number in range(12)]
        made[5].drop()
        store = cast("RedisConnection", queue._connection).store
        channel = ThreadChannel(store.server, "b")
        leases = [f"{store.key(tube.name)}:leases" for tube in made]

        sent: list[bytes] = []
        send = Wire.send

        def note(wire: Wire, packed: bytes) -> None:
            sent.append(packed)
            send(wire, packed)

        monkeypatch.setattr(Wire, "send", note)

        def ends() -> list[float]:
            owners = [cluster.clients[cluster.owner(cluster.slot(key))] for key in leases]
            found = [client.zrange(key, 0, -1, withscores=True) for client, key in zip(owners, leases, strict=True)]
            return [sum(end for _, end in rows) for rows in found]

        for rounds in (1, 2):  # The second round uses the connections of the first.
            before = ends()
            store._renew_tokens(channel, set())
            assert len(sent) == 3 * rounds
            renewed = [new > old for new, old in zip(ends(), before, strict=True)]
            assert renewed == [number != 5 for number in range(12)]
        channel.close()


@pytest.mark.full
def test_restarted_node_has_lost_no_task(cluster: Cluster, ledger: Ledger) -> None:
    url = f"{cluster.url}?prefix={uuid4().hex}"
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load")
        node = cluster.servers[cluster.owner(cluster.slot("{load}"))]
        with load(tube, ledger, url=url) as count:
            before = count()
            node.kill()
            node.start()
            assert eventually(cluster.is_healthy)
            assert eventually(lambda: count() > before + 50)
        assert not ledger.unknown
        ledger.check(tube)


def test_client_of_a_cluster_that_decodes_replies_can_be_given_to_connect(cluster: Cluster) -> None:
    client: Any = redis.RedisCluster(host="127.0.0.1", port=cluster.ports[1], decode_responses=True)
    events: list[str] = []
    with tubes.connect(client) as queue:
        tube = queue.create_tube(uuid4().hex)
        tube.on_task_change(lambda task, event: events.append(event))
        assert tube.take(timeout=0.05) is None
        tube.put({"a": 1})
        take_task(tube).ack()
        assert eventually(lambda: events == ["put", "take", "delete"])
        tube.drop()
    client.close()
