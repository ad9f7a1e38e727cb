"""Batch reads fetch only selected tasks and required data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import tubes
from tubes.spark.server.bulk_read import BulkReader, Table
from tubes.testing import LocalServer

from .objects import copy_by_pickle, read, rows_of, schema, source

TASKS, SIZE = 20_000, 500
#: Size of all data, without the overhead of the protocol.
ALL = TASKS * SIZE


@pytest.fixture
def measure_bytes(valkey: LocalServer) -> Callable[[Callable[[], Any]], tuple[Any, int]]:
    """Function that calls `act`, and returns its result and the bytes that the server has sent."""
    client: Any = valkey.client()

    def measure(act: Callable[[], Any]) -> tuple[Any, int]:
        def total() -> int:
            return int(client.info("stats")["total_net_output_bytes"])

        before = total()
        found = act()
        return found, total() - before

    return measure


@pytest.fixture
def tube(queue: tubes.Queue) -> Any:
    tube = queue.create_tube("t", "utubettl")
    tube.put_many([tubes.Item("x" * SIZE, utube=f"lane {number % 100}") for number in range(TASKS)])
    for id in range(100, 110):
        tube.bury(id, "dead")
    return tube


@pytest.mark.full
def test_data_is_not_fetched_unless_column_needs_it(tube: Any, options: dict[str, str], measure_bytes: Any) -> None:
    rows, size = measure_bytes(lambda: read(options, "id bigint"))
    assert [row["id"] for row in rows] == list(range(TASKS))
    assert size < ALL / 10
    rows, size = measure_bytes(lambda: read(options, "state string, utube string, reason string"))
    assert sum(row["reason"] == "dead" and row["state"] == "!" for row in rows) == 10
    assert {row["utube"] for row in rows} == {f"lane {number}" for number in range(100)}
    assert size < ALL / 10
    rows, size = measure_bytes(lambda: read(options))
    assert all(len(row["data"]) == SIZE for row in rows)
    assert size > ALL


def test_state_filter_fetches_only_matching_tasks(tube: Any, options: dict[str, str], measure_bytes: Any) -> None:
    rows, size = measure_bytes(lambda: read({**options, "state": "buried"}))
    assert [row["id"] for row in rows] == list(range(100, 110))
    assert size < 20 * SIZE + 5000
    task = tube.take(timeout=0)
    rows, size = measure_bytes(lambda: read({**options, "state": "taken, buried"}))
    assert [row["id"] for row in rows] == [task.id, *range(100, 110)]
    assert size < 20 * SIZE + 5000


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("overrides", "ids"),
    [
        ({"ids": "0-99"}, range(100)),
        ({"ids": " 7 "}, [7]),
        ({"ids": f"{TASKS - 2}-"}, [TASKS - 2, TASKS - 1]),
        ({"ids": f"{TASKS - 1}-{TASKS + 50}"}, [TASKS - 1]),
        ({"ids": "107-", "state": "buried"}, [107, 108, 109]),
        ({"ids": "0-205", "lane": "lane 5"}, [5, 105, 205]),
        ({"ids": "0-299", "lane": "lane 5", "state": "ready"}, [5, 205]),
        ({"ids": "0-99", "lane": "nobody's"}, []),
        ({"ids": "300000000000000"}, []),
        ({"ids": "999999999999999999-"}, []),
    ],
    ids=str,
)
def test_ids_lane_and_state_options_select_tasks(
    tube: Any, options: dict[str, str], measure_bytes: Any, overrides: dict[str, str], ids: Any
) -> None:
    rows, size = measure_bytes(lambda: read({**options, **overrides}))
    assert [row["id"] for row in rows] == list(ids)
    assert all(len(row["data"]) == SIZE for row in rows)
    assert size < len(rows) * (SIZE + 100) + 30_000


@pytest.mark.full
def test_lane_filter_fetches_only_tasks_of_lane(tube: Any, options: dict[str, str], measure_bytes: Any) -> None:
    rows, size = measure_bytes(lambda: read({**options, "lane": "lane 5"}))
    assert [row["id"] for row in rows] == list(range(5, TASKS, 100))
    assert size < ALL / 10


def test_state_is_checked_again_when_data_is_read(
    queue: tubes.Queue, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(10))
    for id in (3, 4, 5):
        tube.bury(id)
    read_data = BulkReader.of

    def change_and_read(records: BulkReader, ids: Sequence[int]) -> Iterator[Table]:
        tube.kick(task=3)
        tube.delete(4)
        return read_data(records, ids)

    monkeypatch.setattr(BulkReader, "of", change_and_read)
    assert [row["id"] for row in read({**options, "state": "buried"}, "id bigint, data string")] == [5]


@pytest.mark.parametrize("deleted", [range(0), range(5, 95)])
@pytest.mark.parametrize("parts", ["1", "3"])
def test_partitions_contain_tasks_present_at_read_time(
    queue: tubes.Queue, options: dict[str, str], deleted: range, parts: str
) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(100))
    tube.delete_many(deleted)
    filters = {"all": {}, "buried": {"state": "buried"}, "some": {"ids": "3-101"}, "later": {"ids": "101-"}}
    readers = {
        name: source({**options, "numPartitions": parts, **more}).reader(schema("id bigint, data string"))
        for name, more in filters.items()
    }
    planned = {name: reader.partitions() for name, reader in readers.items()}

    def ids(name: str) -> list[int]:
        return [row["id"] for row in rows_of(readers[name], planned[name])]

    present = [id for id in range(100) if id not in deleted]
    assert (ids("all"), ids("buried"), ids("later")) == (present, [], [])
    tube.put_many(range(5))
    tube.bury(2)
    tube.bury(103)
    tube.delete(4)
    present = [id for id in [*present, *range(100, 105)] if id != 4]
    assert (ids("all"), ids("buried"), ids("later")) == (present, [2, 103], [101, 102, 103, 104])
    assert ids("some") == [id for id in present if 3 <= id <= 101]
    tube.drop()
    queue.create_tube("t").put_many(range(7))
    assert (ids("all"), ids("buried"), ids("some")) == ([0, 1, 2, 3, 4, 5, 6], [], [3, 4, 5, 6])


@pytest.mark.full
def test_first_batch_of_partition_is_small(tube: Any, options: dict[str, str], measure_bytes: Any) -> None:
    reader = source(options).reader(schema("data string"))
    (part,) = reader.partitions()
    batch, size = measure_bytes(lambda: next(copy_by_pickle(reader).read(part)))
    assert batch.num_rows < 1000
    assert size < ALL / 10
