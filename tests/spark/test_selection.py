"""What a read leaves on the server: data that nobody asks for, and tasks that a query filters out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, IsNull, LessThan, LessThanOrEqual, Not

import tubes
from tubes.spark.snapshot import FilteringReader, snapshot_reader
from tubes.testing import LocalServer

from .objects import copied, read, rows_of, schema, source

TASKS, SIZE = 20_000, 500
#: The data, and some bytes of the protocol for each.
ALL = TASKS * SIZE


@pytest.fixture
def sent(valkey: LocalServer) -> Callable[[Callable[[], Any]], tuple[Any, int]]:
    """What a function returns, and how many bytes the server has sent meanwhile."""
    client: Any = valkey.client()

    def measured(act: Callable[[], Any]) -> tuple[Any, int]:
        def total() -> int:
            return int(client.info("stats")["total_net_output_bytes"])

        before = total()
        found = act()
        return found, total() - before

    return measured


@pytest.fixture
def tube(queue: tubes.Queue) -> Any:
    tube = queue.create_tube("t", "utubettl")
    tube.put_many([tubes.Item("x" * SIZE, utube=f"lane {number % 100}") for number in range(TASKS)])
    for id in range(100, 110):
        tube.bury(id, "dead")
    return tube


def filtered(options: dict[str, str], *filters: Filter, ddl: str | None = None) -> tuple[list[Any], list[Filter]]:
    """The rows of a read that was given filters, and those filters that it left to Spark."""
    made = source(options)
    reader = FilteringReader(_settings(options), schema(ddl or str(made.schema())))
    left = list(reader.pushFilters(list(filters)))
    return rows_of(reader, reader.partitions()), left


def _settings(options: dict[str, str]) -> Any:
    from tubes.spark.settings import read_settings

    return read_settings(options)


def test_data_stay_on_the_server_where_no_column_needs_them(tube: Any, options: dict[str, str], sent: Any) -> None:
    rows, size = sent(lambda: read(options, "id bigint"))
    assert [row["id"] for row in rows] == list(range(TASKS))
    assert size < ALL / 10
    rows, size = sent(lambda: read(options, "state string, utube string, reason string"))
    assert sum(row["reason"] == "dead" and row["state"] == "!" for row in rows) == 10
    assert {row["utube"] for row in rows} == {f"lane {number}" for number in range(100)}
    assert size < ALL / 10
    rows, size = sent(lambda: read(options))
    assert all(len(row["data"]) == SIZE for row in rows)
    assert size > ALL


def test_a_state_that_few_tasks_have_moves_those_alone(tube: Any, options: dict[str, str], sent: Any) -> None:
    rows, size = sent(lambda: read({**options, "state": "buried"}))
    assert [row["id"] for row in rows] == list(range(100, 110))
    assert size < 20 * SIZE + 5000
    task = tube.take(timeout=0)
    rows, size = sent(lambda: read({**options, "state": "taken, buried"}))
    assert [row["id"] for row in rows] == [task.id, *range(100, 110)]
    assert size < 20 * SIZE + 5000


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([LessThan(("id",), 100)], range(100)),
        ([LessThanOrEqual(("id",), 3), GreaterThan(("id",), 1)], [2, 3]),
        ([EqualTo(("id",), 7), IsNotNull(("id",))], [7]),
        ([In(("id",), (7, 105, TASKS + 5)), EqualTo(("state",), "!")], [105]),
        ([EqualTo(("state",), "!"), GreaterThan(("id",), 107)], [108, 109]),
        ([In(("state",), ("!", "t"))], range(100, 110)),
        ([Not(EqualTo(("state",), "r"))], range(100, 110)),
        ([EqualTo(("utube",), "lane 5"), LessThan(("id",), 206)], [5, 105, 205]),
        ([In(("utube",), ("lane 5", None)), EqualTo(("state",), "r"), LessThan(("id",), 300)], [5, 205]),
        ([EqualTo(("state",), "nonsense")], []),
        ([In(("id",), (-1, 5, 2**50))], [5]),
        ([LessThan(("id",), -5)], []),
        ([GreaterThan(("id",), 2**50)], []),
        ([EqualTo(("id",), 5), EqualTo(("id",), 6)], []),
    ],
    ids=str,
)
def test_a_filter_that_spark_gives_is_applied_where_the_tasks_are(
    tube: Any, options: dict[str, str], sent: Any, filters: list[Filter], ids: Any
) -> None:
    (rows, left), size = sent(lambda: filtered(options, *filters))
    assert left == []
    assert [row["id"] for row in rows] == list(ids)
    assert all(len(row["data"]) == SIZE for row in rows)
    assert size < len(rows) * (SIZE + 100) + 30_000


def test_a_lane_moves_its_tasks_alone(tube: Any, options: dict[str, str], sent: Any) -> None:
    (rows, _), size = sent(lambda: filtered(options, EqualTo(("utube",), "lane 5")))
    assert [row["id"] for row in rows] == list(range(5, TASKS, 100))
    assert size < ALL / 10


def test_other_filters_are_left_to_spark(tube: Any, options: dict[str, str]) -> None:
    others = [IsNull(("utube",)), EqualTo(("data",), "x"), Not(EqualTo(("id",), 5)), LessThan(("pri",), 5)]
    rows, left = filtered(options, others[0], LessThan(("id",), 5), *others[1:])
    assert [row["id"] for row in rows] == list(range(5))
    assert left == others


def test_a_filter_is_looked_at_again_when_the_data_come(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(10))
    tube.bury(3)
    tube.bury(4)
    reader = source({**options, "state": "buried"}).reader(schema("id bigint, data string"))
    parts = reader.partitions()
    tube.kick_task(3)
    tube.delete(4)
    tube.bury(5)
    assert rows_of(reader, parts) == []


def test_a_query_with_a_limit_gets_few_tasks_first(tube: Any, options: dict[str, str], sent: Any) -> None:
    reader = source(options).reader(schema("data string"))
    (part,) = reader.partitions()
    batch, size = sent(lambda: next(copied(reader).read(part)))
    assert batch.num_rows < 1000
    assert size < ALL / 10


def test_a_reader_takes_filters_only_where_spark_gives_some(
    tube: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = schema("id bigint")
    assert type(snapshot_reader(_settings(options), asked)) is not FilteringReader
    name = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert type(snapshot_reader(_settings(options), asked)) is FilteringReader
