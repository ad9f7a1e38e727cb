"""Measure how much one node and three nodes work for a task, on real servers.

All nodes share the cores of this machine, so tasks per second would say little. A node is full when it works all the
time: then it does one task per `busiest node, µs`.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Final

import tubes
from benchmarks.peers.servers import cpu_seconds
from benchmarks.shared.report import machine, write_result
from tests.support.cluster import Cluster
from tubes.testing import LocalServer

TASKS: Final = 20_000
LANES: Final = 1000
THREADS: Final = 4
HEAD: Final = (
    "| nodes | partitions | calls | busiest node, µs per task | client, µs per task | tasks/s when the nodes are full "
    "| to one node |\n" + "|---" * 7 + "|"
)


def lane(number: int) -> str:
    return f"host {number % LANES}"


def work(url: str, partitions: int | None, batch: int) -> None:
    """Put all tasks, then take and ack them, in threads with a queue of their own."""

    def put(first: int) -> None:
        with tubes.connect(url) as queue:
            tube = queue.tube("scale")
            for start in range(first, TASKS, THREADS * batch):
                if batch == 1:
                    tube.put(start, utube=lane(start))
                else:
                    tube.put_many(tubes.Item(number, utube=lane(number)) for number in range(start, start + batch))

    def take(_: int) -> None:
        with tubes.connect(url) as queue:
            tube = queue.tube("scale")
            if batch == 1:
                while (task := tube.take(timeout=1)) is not None:
                    task.ack()
            else:
                while tasks := tube.take_many(batch, timeout=1):
                    tube.ack_many(tasks)

    with tubes.connect(url) as queue:
        if partitions is None:
            queue.create_tube("scale", "utubettl")
        else:
            queue.create_tube("scale", "utubettl", partitions=partitions)
        for act in (put, take):  # One after the other: full nodes have a backlog.
            threads = [threading.Thread(target=act, args=(number * batch,)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert queue.tube("scale").statistics().tasks["done"] == TASKS


def measure(url: str, servers: list[LocalServer], partitions: int | None, batch: int) -> tuple[float, float]:
    """Return the seconds for which the busiest node and the client worked for each task."""
    before = [cpu_seconds(server.pid) for server in servers]
    started = time.process_time()
    work(url, partitions, batch)
    client = time.process_time() - started
    nodes = [cpu_seconds(server.pid) - seconds for server, seconds in zip(servers, before, strict=True)]
    return max(nodes) / TASKS, client / TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write-readme", action="store_true", help="write the table into README.md")
    args = parser.parse_args()
    lines = [HEAD]
    for batch in (1, 20, 200):
        one = 0.0
        for nodes, partitions in ((1, None), (1, 12), (3, 12)):
            with Cluster(appendonly="no") if nodes == 3 else LocalServer() as place:
                servers = place.servers if isinstance(place, Cluster) else [place]
                node, client = measure(place.url, servers, partitions, batch)
            one = one or node
            calls = "single" if batch == 1 else f"batches of {batch}"
            ends = f"{node * 1e6:.0f} | {client * 1e6:.0f} | {1 / node:,.0f} | {one / node:.2f}"
            lines.append(f"| {nodes} | {partitions or 'none'} | {calls} | {ends} |")
    print("\n".join(lines))
    if args.write_readme:
        write_result(
            Path(__file__).parent / "README.md", "nodes", f"One result, of {machine()}.\n\n" + "\n".join(lines)
        )


if __name__ == "__main__":
    main()
