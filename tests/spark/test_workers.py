"""Pooled connections and slots of Spark's worker processes."""

from __future__ import annotations

import os
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

import tubes
from tubes.spark import workers
from tubes.spark.workers import shared_queue, slots_of
from tubes.testing import LocalServer

from .objects import batch_of, copy_by_pickle, read, rows_of, schema, source, write


def test_extra_allows_no_spark_that_is_newer_than_the_tested_one() -> None:
    """Internals of Spark change in minor versions: raise the bound when these tests pass with the next one."""
    major, minor = map(int, pyspark.__version__.split(".")[:2])
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert f"pyspark>=4.0,<{major}.{minor + 1}" in project["project"]["optional-dependencies"]["spark"]


def connection_count(valkey: LocalServer) -> int:
    client: Any = valkey.client()
    with client:
        return int(client.info("stats")["total_connections_received"])


def test_reads_and_writes_share_connection_of_process(
    queue: tubes.Queue, options: dict[str, str], valkey: LocalServer
) -> None:
    queue.create_tube("t")

    def use() -> None:
        write({**options, "delivery": "at-least-once"}, [[{"data": "x"}]] * 3, "data string")
        read(options)

    use()
    before = connection_count(valkey)
    for _ in range(3):
        use()
    assert connection_count(valkey) - before == 1, "only the connection of connection_count is new"


def test_connection_is_shared_per_url_and_used_exclusively(url: str) -> None:
    with shared_queue(url, "json") as one, shared_queue(url, "json") as other, shared_queue(url, "raw") as raw:
        assert len({id(one), id(other), id(raw)}) == 3
    with shared_queue(url, "json") as again, shared_queue(f"{url}2", "json") as elsewhere:
        assert again in (one, other)
        assert elsewhere not in (one, other)


def lines_of_error(act: Callable[[], object]) -> int:
    """Return the number of lines of the traceback from our first line on."""
    with pytest.raises(tubes.TubesError) as raised:
        act()
    lines = "".join(traceback.format_exception(raised.value)).splitlines()
    return len(lines) - next(number for number, line in enumerate(lines) if "tubes/spark" in line)


def test_error_on_executor_has_at_most_ten_lines(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t", capacity=1, driver="limfifottl")
    ddl = "url string, m map<string,double>"
    batch = batch_of([{"url": "a", "m": {"a": float("nan")}}] * 2, ddl)
    writer = copy_by_pickle(source(options).writer(schema(ddl), overwrite=False))
    assert lines_of_error(lambda: writer.write(iter([batch]))) <= 10
    reader = source(options).reader(schema("data string"))
    partitions = reader.partitions()
    queue.tube("t").drop()
    assert lines_of_error(lambda: rows_of(reader, partitions)) <= 10


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"master": "local"}, 1),
        ({"master": "local[6]", "default.parallelism": "2"}, 6),
        ({"master": "local[3,4]"}, 3),
        ({"master": "local[*]"}, os.cpu_count()),
        ({"master": "yarn", "executor.instances": "5", "executor.cores": "4"}, 20),
        ({"master": "yarn", "executor.instances": "5", "executor.cores": "4", "task.cpus": "2"}, 10),
        ({"master": "k8s://x", "dynamicAllocation.enabled": "true", "dynamicAllocation.maxExecutors": "8"}, 8),
        ({"master": "spark://x", "cores.max": "24"}, 24),
        ({"master": "spark://x", "default.parallelism": "48"}, 48),
        ({"master": "spark://x"}, None),
    ],
)
def test_slots_are_derived_from_spark_settings(settings: dict[str, str], slots: int | None) -> None:
    assert slots_of({f"spark.{name}": value for name, value in settings.items()}.get) == slots


def test_idle_connections_are_limited(url: str) -> None:
    for number in range(9):
        with shared_queue(f"{url}{number}", "json"):
            pass
    assert [key[0] for key in workers._idle] == [f"{url}{number}" for number in range(5, 9)]


def test_failed_connection_is_not_reused(url: str) -> None:
    with pytest.raises(tubes.TubeNotFound), shared_queue(url, "json") as failed:
        failed.tube("nowhere")
    with shared_queue(url, "json") as queue:
        assert queue is not failed
    with pytest.raises(tubes.QueueClosed):
        failed.tubes()


def test_connection_closed_by_server_is_reopened(url: str, valkey: LocalServer) -> None:
    client: Any = valkey.client()
    with shared_queue(url, "json") as queue:
        queue.create_tube("t").put("x")
    client.client_kill_filter(_type="normal", skipme=True)
    with shared_queue(url, "json") as again:
        assert again is queue
        assert again.tube("t").statistics().tasks["ready"] == 1


def test_forked_process_opens_its_own_connections(url: str) -> None:
    with shared_queue(url, "json") as queue:
        queue.create_tube("t").put("x")
    child = os.fork()
    if not child:
        code = 1
        try:
            with shared_queue(url, "json") as own:
                code = 0 if own is not queue and own.tube("t").statistics().tasks["ready"] == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with shared_queue(url, "json") as same:
        assert same is queue
        assert same.tube("t").statistics().tasks["ready"] == 1
