"""Failovers of a Sentinel: coordinated changes of the master, and killed masters.

A coordinated failover loses nothing. Another failover loses the writes that the replica had not received, so tests then
account only for replicated writes.
"""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

import tubes
from tests.contract.bench import eventually
from tests.faults.test_servers import load
from tests.support.internals import port_of
from tests.support.sentinel import SERVICE, Watched
from tests.support.servers import free_port
from tests.support.taking import take_task
from tubes.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.ledger import Ledger

pytestmark = pytest.mark.full


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


@pytest.fixture
def patient() -> Iterator[Watched]:
    """Start a Sentinel that changes masters only on request: its own failovers lose unreplicated writes."""
    with Watched(patience=60_000) as watched:
        yield watched


def test_coordinated_failovers_lose_no_task(patient: Watched, ledger: Ledger, factor: int) -> None:
    url = f"{patient.url}?prefix={uuid4().hex}"
    taken: list[Any] = []
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other:
        tube, quiet = queue.create_tube("load", "utubettl"), queue.create_tube("quiet")
        with load(tube, ledger, url=url) as count:
            for _ in range(2 * factor):
                thread = threading.Thread(target=lambda: taken.append(quiet.take(timeout=20)))
                thread.start()
                assert eventually(lambda: quiet.statistics().waiting == 1)
                before = count()
                patient.switch_roles()
                assert eventually(lambda before=before: count() > before + 50)  # type: ignore[misc]
                other.tube("quiet").put("job")
                thread.join()
                assert taken[-1] is not None
                assert taken[-1].ack().state == "done"
        assert not ledger.unknown
        ledger.check(tube)


def test_failover_keeps_replicated_tasks_after_a_killed_master(watched: Watched, ledger: Ledger) -> None:
    """Waiting takes continue automatically, in threads and event loops; a put is retried until a master exists."""
    url = f"{watched.url}?prefix={uuid4().hex}"

    async def main() -> None:
        async with tubes.aio.connect(url, session_ttl=32.0) as loops:
            there = await loops.create_tube("loops")
            waiting = asyncio.create_task(there.take(timeout=30))
            await asyncio.to_thread(fail_over)
            await there.put("for the loop")
            task = await waiting
            assert task is not None
            assert (await task.ack()).data == "for the loop"

    def fail_over() -> None:
        for number in range(100):
            ledger.put(tube, str(number))
        for _ in range(30):
            ledger.work(take_task(tube))
        held.append(tube.take(timeout=0))
        watched.replicate()
        master = watched.master
        watched.servers[master].kill()
        assert ledger.put(tube, "after it")
        assert watched.master != master

    held: list[Any] = []
    taken: list[Any] = []
    with tubes.connect(url) as queue, tubes.connect(url, session_ttl=31.0) as other:
        tube, quiet = queue.create_tube("load"), queue.create_tube("quiet")
        thread = threading.Thread(target=lambda: taken.append(quiet.take(timeout=30)))
        thread.start()
        assert eventually(lambda: quiet.statistics().waiting == 1)
        asyncio.run(main())
        other.tube("quiet").put("job")
        thread.join()
        assert taken[0].ack().data == "job"
        ledger.work(held[0])
        assert (ledger.late, ledger.unknown) == (0, set())
        ledger.check(tube)


def test_promoted_replica_has_the_library(patient: Watched) -> None:
    with tubes.connect(f"{patient.url}?prefix={uuid4().hex}") as queue:
        tube = queue.create_tube("t")
        tube.put(0)
        patient.switch_roles()
        client = patient.clients[patient.master]
        client.config_resetstat()
        assert tube.put(1).id == 1
        assert port_of(tube).connection.store.server.has_functions
        assert "cmdstat_function|load" not in client.info("commandstats")


def test_error_names_the_sentinels_that_did_not_reply() -> None:
    closed_port = free_port()
    with Watched() as watched:
        here, _, port = watched.url.removesuffix(f"/{SERVICE}").rpartition(":")
        for url, message in (
            (
                f"{here}:{closed_port}/{SERVICE}",
                f"No master found for '{SERVICE}' : Sentinel 127.0.0.1:{closed_port} did not reply",
            ),
            (f"{here}:{closed_port},127.0.0.1:{port}/nosuch", f"Sentinel 127.0.0.1:{closed_port} did not reply"),
        ):
            with pytest.raises(tubes.ConnectionLost, match=re.escape(message)) as caught:
                tubes.connect(url, connect_timeout=0.1)
            assert "redis.connection" not in str(caught.value)
            assert f":{port} did not" not in str(caught.value)
            command = CliRunner().invoke(app, ["stats", "--url", url])
            assert f"no connection to {url}: No master found" in command.stderr
