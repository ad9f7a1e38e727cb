"""Measure the cost of a request: `python -m benchmarks.serve [--quick]`.

Each subject is measured in turn, in several rounds of one run. The result is the CPU of the server's process per task
in the best round, relative to that of a Starlette app that reads a body and says hello.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

_HEAD: Final = "{} {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n"
_TUBE: Final = "/v1/_/tubes/bench"
#: Tasks of a batch.
_BATCH: Final = 64


class Server:
    """A server in a separate process, and one connection to it."""

    def __init__(self, *words: str) -> None:
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        found = None
        while found is None:
            found = re.search(r"http://127.0.0.1:(\d+)", self._process.stderr.readline())
        self.port: Final = int(found[1])
        self._socket: Final = socket.create_connection(("127.0.0.1", self.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method: str, path: str, body: str = "") -> bytes:
        """Send a request and return the body of the reply."""
        self._socket.sendall((_HEAD.format(method, path, len(body)) + body).encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(65536)
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head[9:10] == b"2", received
        length = re.search(rb"content-length: (\d+)", head)
        while length is not None and len(rest) < int(length[1]):
            rest += self._socket.recv(65536)
        return rest

    def cpu(self) -> float:
        """Return the CPU seconds of the process, in all threads."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()


def _hello(server: Server) -> None:
    server.ask("POST", "/hello", '{"data":{"to":"ann"}}')


def _publish(server: Server) -> None:
    server.ask("POST", f"{_TUBE}/tasks", '{"data":{"to":"ann"}}')


def _consume(server: Server) -> None:
    (task,) = json.loads(server.ask("POST", f"{_TUBE}/take", "{}"))["tasks"]
    server.ask("DELETE", f"/v1/_/leases/{task['lease']}")


def _publish_batch(server: Server) -> None:
    server.ask("POST", f"{_TUBE}/tasks/batch", json.dumps({"items": [{"data": {"to": "ann"}}] * _BATCH}))


def _consume_batch(server: Server) -> None:
    tasks = json.loads(server.ask("POST", f"{_TUBE}/take", f'{{"limit":{_BATCH}}}'))["tasks"]
    server.ask("POST", "/v1/_/leases/ack", json.dumps({"leases": [task["lease"] for task in tasks]}))


async def _wake(port: int, polls: int) -> float:
    """Return the seconds in which puts wake the same number of waiting polls."""
    body = '{"wait":60}'

    async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((_HEAD.format("POST", f"{_TUBE}/take", len(body)) + body).encode())
        return reader, writer

    lines = [await open_one() for _ in range(polls)]
    await asyncio.sleep(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"items": [{"data": 1}] * polls})
    began = time.perf_counter()
    writer.write((_HEAD.format("POST", f"{_TUBE}/tasks/batch", len(body)) + body).encode())
    await asyncio.gather(*(line[0].readuntil(b"\r\n\r\n") for line in lines))
    took = time.perf_counter() - began
    for line in (*lines, (reader, writer)):
        line[1].close()
    return took


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and calls, for a quick look")
    rounds, count = (3, 500) if parser.parse_args().quick else (9, 2000)
    with ExitStack() as stack:
        hello = stack.enter_context(Server("benchmarks.serve.hello"))
        serve = ("tubes", "serve", "--url", "memory://", "--http", "127.0.0.1:0")
        logged = stack.enter_context(Server(*serve))
        silent = stack.enter_context(Server(*serve, "--no-access-log"))
        for server in (logged, silent):
            server.ask("PUT", _TUBE)
        subjects: list[tuple[str, Server, Callable[[Any], None], int]] = [("Starlette, hello", hello, _hello, 1)]
        for about, server in (("", silent), (", with the access log", logged)):
            subjects += [
                (f"publish{about}", server, _publish, 1),
                (f"consume + ack{about}", server, _consume, 1),
                (f"publish, {_BATCH} at a time{about}", server, _publish_batch, _BATCH),
                (f"consume + ack, {_BATCH} at a time{about}", server, _consume_batch, _BATCH),
            ]
        best: dict[str, float] = {}
        for _ in range(rounds):
            for name, server, act, tasks in subjects:
                before = server.cpu()
                for _ in range(count // tasks or 1):
                    act(server)
                spent = (server.cpu() - before) / (count // tasks or 1) / tasks
                best[name] = min(spent, best.get(name, spent))
        woken = min(asyncio.run(_wake(silent.port, 1000)) for _ in range(3))
    base = best["Starlette, hello"]
    print("| | CPU per task | relative to hello |\n|---|---|---|")
    for name, spent in best.items():
        print(f"| {name} | {spent * 1e6:.0f} µs | {spent / base:.2f} |")
    print(f"\n1,000 tasks woke 1,000 polling clients in {woken:.2f} s.")


if __name__ == "__main__":
    main()
