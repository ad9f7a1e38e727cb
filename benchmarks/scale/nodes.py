"""Measure how many tasks one node and three nodes do when they are full, on real servers.

The nodes share the cores of this machine, and a node that often waits needs more time for a call. So each node gets its
share of the work while the others are idle, and its processor time counts: in one second it does
tasks / processor seconds.
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
from tests.support.internals import port_of
from tubes.partitions.layout import route
from tubes.testing import LocalServer

TASKS: Final = 20_000
LANES: Final = 1000
THREADS: Final = 4
HEAD: Final = (
    "| nodes | partitions | calls | tasks/s when all nodes are full | to one node | client, µs per task |\n"
    + "|---" * 6
    + "|"
)


def work(url: str, lanes: list[str], tasks: int, batch: int) -> None:
    """Put tasks, then take and ack them, in threads with a queue of their own."""

    def put(first: int) -> None:
        with tubes.connect(url) as queue:
            tube = queue.tube("scale")
            for start in range(first, tasks, THREADS * batch):
                if batch == 1:
                    tube.put(start, utube=lanes[start % len(lanes)])
                else:
                    numbers = range(start, min(start + batch, tasks))
                    tube.put_many(tubes.Item(number, utube=lanes[number % len(lanes)]) for number in numbers)

    def take(_: int) -> None:
        with tubes.connect(url) as queue:
            tube = queue.tube("scale")
            if batch == 1:
                while (task := tube.take(timeout=1)) is not None:
                    task.ack()
            else:
                while found := tube.take_many(batch, timeout=1):
                    tube.ack_many(found)

    for act in (put, take):  # One after the other: full nodes have a backlog.
        threads = [threading.Thread(target=act, args=(number * batch,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def measure(url: str, servers: list[LocalServer], partitions: int | None, batch: int) -> tuple[float, float]:
    """Return the tasks per second that the nodes do when they are full, and the seconds of the client for each task."""
    full, client = 0.0, time.process_time()
    with tubes.connect(url) as queue:
        if partitions is None:
            tube = queue.create_tube("scale", "utubettl")
        else:
            tube = queue.create_tube("scale", "utubettl", partitions=partitions)
        port = port_of(tube)
        key, node_of = port.connection.store.key, port.connection.store.server.node
        nodes = [node_of(key(name)) for name in getattr(port, "_names", ["scale"])]
        lanes = [f"host {number}" for number in range(LANES)]
        for node in set(nodes):
            mine = [lane for lane in lanes if nodes[route(lane, len(nodes))] == node]
            tasks = TASKS // len(servers)
            before = [cpu_seconds(server.pid) for server in servers]
            work(url, mine, tasks, max(batch // len(servers), 1))
            worked = max(cpu_seconds(server.pid) - seconds for server, seconds in zip(servers, before, strict=True))
            full += tasks / worked
        assert tube.statistics().tasks["done"] == TASKS // len(servers) * len(servers)
    return full, (time.process_time() - client) / TASKS


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
                full, client = measure(place.url, servers, partitions, batch)
            one = one or full
            calls = "single" if batch == 1 else f"batches of {batch}"
            lines.append(
                f"| {nodes} | {partitions or 'none'} | {calls} | {full:,.0f} | {full / one:.2f} | {client * 1e6:.0f} |"
            )
    print("\n".join(lines))
    if args.write_readme:
        write_result(
            Path(__file__).parent / "README.md", "nodes", f"One result, of {machine()}.\n\n" + "\n".join(lines)
        )


if __name__ == "__main__":
    main()
