"""What takes too long for each run of the tests.

    python -m tests.serve.soak [--kills 50] [--tasks 5000] [--connections 10000]

A service has idle connections, and others are served beside them. Then tasks are delivered by instances that are
killed, with a ledger at the receiver: each is delivered at least once, and a kill repeats at most one callback and one
push.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from pathlib import Path
from uuid import uuid4

import httpx

from tests.serve.test_later import delivered
from tests.support.served import Served
from tubes.testing import LocalServer


async def idle(count: int) -> None:
    """Open connections that say nothing after their first request, or while they wait; others are served meanwhile."""
    with Served("--url", "memory://", "--no-access-log") as served:
        served.client.put("/v1/_/tubes/mail")
        polls = b'{"wait":600}'
        head = b"POST /v1/_/tubes/mail/take HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(polls)
        lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for number in range(count):
            lines.append(await asyncio.open_connection("127.0.0.1", served.port))
            # Half of them wait for a task, the others have asked once and are kept alive.
            lines[-1][1].write(head + polls if number % 2 else b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
            while (await client.get("/v1/_/tubes/mail")).json()["waiting"] < count // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            slowest = 0.0
            for number in range(100):
                began = time.perf_counter()
                await client.put(f"/v1/_/tubes/other{number}")
                slowest = max(slowest, time.perf_counter() - began)
            pages = int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1])  # noqa: ASYNC240
            size = pages * resource.getpagesize() // 2**20
            print(f"{count} idle connections: {size} MB; the slowest of 100 requests beside them: {slowest:.3f} s")
        began = time.perf_counter()
        served.process.terminate()
        await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in lines))
        assert await asyncio.to_thread(served.process.wait, 30) == 0
        print(f"all of them had replies, and it ended, in {time.perf_counter() - began:.2f} s")
        for _, writer in lines:
            writer.close()


def main() -> None:
    """Soak, and print figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (("kills", 50), ("tasks", 5000), ("connections", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(idle(given.connections))
    with LocalServer() as valkey:
        url = f"{valkey.url}?prefix={uuid4().hex}&session_ttl=2"
        ledger = asyncio.run(delivered(url, given.tasks, given.kills, 2))
    more = sum(ledger.values()) - len(ledger)
    print(f"{given.kills} kills: {len(ledger)} tasks were delivered, {more} of them once more")


if __name__ == "__main__":
    main()
