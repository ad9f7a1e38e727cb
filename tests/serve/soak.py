"""Soak tests, which take too long for the test suite.

    python -m tests.serve.soak [--kills 50] [--tasks 5000] [--connections 10000]

First a service has many idle connections while it serves other requests. Then tasks are delivered by instances that are
killed, with a ledger at the receiver: each task is delivered at least once, and a kill repeats at most one callback and
one push.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from pathlib import Path
from uuid import uuid4

import httpx

from tests.serve.test_later import deliver_tasks
from tests.support.served import Served
from tubes.testing import LocalServer


async def measure_idle_connections(count: int) -> None:
    """Open connections that are idle or wait for a task, and measure other requests."""
    with Served("--url", "memory://", "--no-access-log") as served:
        served.client.put("/v1/_/tubes/mail")
        polls = b'{"wait":600}'
        head = b"POST /v1/_/tubes/mail/take HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(polls)
        lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for number in range(count):
            lines.append(await asyncio.open_connection("127.0.0.1", served.port))
            # Half of the connections wait for a task; the others are kept alive after one request.
            lines[-1][1].write(head + polls if number % 2 else b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
            while (await client.get("/v1/_/tubes/mail")).json()["waiting"] < count // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            slowest = 0.0
            for number in range(100):
                started = time.perf_counter()
                await client.put(f"/v1/_/tubes/other{number}")
                slowest = max(slowest, time.perf_counter() - started)
            pages = int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1])  # noqa: ASYNC240
            size = pages * resource.getpagesize() // 2**20
            print(f"{count} idle connections: {size} MB; the slowest of 100 other requests: {slowest:.3f} s")
        started = time.perf_counter()
        served.process.terminate()
        await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in lines))
        assert await asyncio.to_thread(served.process.wait, 30) == 0
        print(f"all connections had replies, and the service ended, in {time.perf_counter() - started:.2f} s")
        for _, writer in lines:
            writer.close()


def main() -> None:
    """Run the soak tests and print measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (("kills", 50), ("tasks", 5000), ("connections", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    asyncio.run(measure_idle_connections(arguments.connections))
    with LocalServer() as valkey:
        url = f"{valkey.url}?prefix={uuid4().hex}&session_ttl=2"
        ledger = asyncio.run(deliver_tasks(url, arguments.tasks, arguments.kills, 2))
    repeated = sum(ledger.values()) - len(ledger)
    print(f"{arguments.kills} kills: {len(ledger)} tasks delivered, {repeated} repeated deliveries")


if __name__ == "__main__":
    main()
