"""Batch reads and writes, with the objects that Spark calls."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Any

import pytest

import tubes
import tubes.errors
from tubes import CodecError, InvalidOption
from tubes.spark.arrow import pa
from tubes.spark.payload import Writers
from tubes.spark.server import bulk_write

from .objects import batch_of, read, schema, source, write

NAN = float("nan")

UTC = datetime.UTC


def data(queue: tubes.Queue) -> list[Any]:
    return [task.data for task in queue.tube("t").take_many(10_000, timeout=0)]


def test_data_column_becomes_task_data(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    texts = ["http://example.com/", 'with "quotes" and \\', "ünï\n\x00", ""]
    write(options, [[{"data": text} for text in texts], [{"data": None}]], "data string")
    assert data(queue) == [*texts, None]


def test_frame_without_data_column_becomes_object(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t", "utube")
    ddl = (
        "url string, utube string, n bigint, ok boolean, at timestamp, day date, noon time, price decimal(5,2),"
        " tags array<string>, more map<string,int>, in struct<a: int, b: string>"
    )
    row = {
        "url": "u", "utube": "lane", "n": 5, "ok": True, "at": datetime.datetime(2026, 1, 2, 3, tzinfo=UTC),
        "day": datetime.date(2026, 1, 2), "noon": datetime.time(12), "price": Decimal("1.50"), "tags": ["a", None],
        "more": [("x", 1)], "in": {"a": 1, "b": None},
    }  # fmt: skip
    write(options, [[row]], ddl)
    (task,) = queue.tube("t").take_many(5, timeout=0)
    assert task.utube == "lane"
    assert task.data == {
        "url": "u", "n": 5, "ok": True, "at": "2026-01-02T03:00:00+00:00", "day": "2026-01-02", "noon": "12:00:00",
        "price": "1.50", "tags": ["a", None], "more": {"x": 1}, "in": {"a": 1, "b": None},
    }  # fmt: skip


def test_map_keys_are_encoded_like_values(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    ddl = (
        "days map<date,int>, prices map<decimal(5,2),int>, spans map<interval day to second,int>, numbers map<int,int>"
    )
    row = {
        "days": [(datetime.date(2026, 1, 2), 1)], "prices": [(Decimal("1.50"), 2)],
        "spans": [(datetime.timedelta(seconds=90), 3)], "numbers": [(7, 4)],
    }  # fmt: skip
    write(options, [[row]], ddl)
    assert data(queue) == [
        {"days": {"2026-01-02": 1}, "prices": {"1.50": 2}, "spans": {"90.0": 3}, "numbers": {"7": 4}}
    ]


def test_option_columns_match_put_options(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utubettl")
    ddl = (
        "data string, utube string, pri int, ttl double, ttr bigint, delay interval day to second, key string,"
        " max_attempts int"
    )
    row_values: dict[str, Any] = {
        "data": "x", "utube": "a", "pri": 3, "ttl": 60.5, "ttr": 5, "delay": datetime.timedelta(seconds=2), "key": "k",
        "max_attempts": 7,
    }  # fmt: skip
    write(options, [[row_values, {**dict.fromkeys(row_values), "data": "y"}]], ddl)
    task, plain = tube.peek(0), tube.peek(1)
    assert (task.utube, task.pri, task.ttl, task.ttr, task.state) == ("a", 3, 62.5, 5.0, "~")
    assert (task.key, task.max_attempts) == ("k", 7)
    assert (plain.utube, plain.pri, plain.ttl, plain.key, plain.state) == (None, 0, None, None, "r")


def test_write_options_apply_where_column_is_null_or_missing(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utubettl")
    rows: list[dict[str, Any]] = [{"data": "x", "pri": 3, "key": None}, {"data": "y", "pri": None, "key": "k"}]
    overrides = {"pri": "5", "ttl": "60", "maxAttempts": "2", "keyTtl": "9", "onDuplicate": "replace"}
    write({**options, **overrides}, [rows], "data string, pri int, key string")
    assert [(task.pri, task.ttl, task.max_attempts) for task in (tube.peek(0), tube.peek(1))] == [
        (3, 60.0, 2),
        (5, 60.0, 2),
    ]


def test_task_with_key_is_put_once(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t", "utube")
    rows = [{"data": f"{number}", "key": f"{number % 7}", "utube": f"{number % 3}"} for number in range(40)]
    write(options, [rows[:20], rows[20:]], "data string, key string, utube string")
    assert queue.tube("t").statistics().tasks["total"] == 7


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_tasks_keep_row_order(
    queue: tubes.Queue, options: dict[str, str], delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.create_tube("t")
    rows = [{"data": f"{number}"} for number in range(2500)]
    write({**options, "delivery": delivery}, [rows[:900], rows[900:]], "data string")
    assert data(queue) == [row["data"] for row in rows]


def test_failed_write_puts_nothing(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    writer = write(options, [[{"data": "x"}]], "data string", ends="abort")
    assert queue.tube("t").statistics().tasks["total"] == 0
    with pytest.raises(tubes.errors.WriteAborted):  # by a Spark task that is still running
        writer.write(iter([_batch()]))


def _batch() -> Any:
    from .objects import batch_of

    return batch_of([{"data": "late"}], "data string")


def test_write_with_id_is_put_once(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    for _ in range(3):
        write({**options, "writeId": "2026-11-21"}, [[{"data": "x"}]], "data string")
    write({**options, "writeId": "2026-11-22"}, [[{"data": "y"}]], "data string")
    assert data(queue) == ["x", "y"]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("kind", ["string", "int", "boolean"])
def test_rows_of_a_lane_are_put_in_their_order(
    queue: tubes.Queue, options: dict[str, str], delivery: str, kind: str
) -> None:
    tube = queue.create_tube("t", "utubettl")
    names: dict[str, list[Any]] = {"string": ["b", "a", ""], "int": [7, -1, 30], "boolean": [True, False]}
    lanes = [None, *names[kind]]
    rows = [{"data": n, "utube": lanes[n * 7 % 11 % len(lanes)], "max_attempts": 1 + n // 3 % 2} for n in range(90)]
    write({**options, "delivery": delivery}, [rows], f"data int, utube {kind}, max_attempts int")
    known = {lane: [row for row in rows if row["utube"] == lane] for lane in lanes}
    for lane, expected in known.items():
        tasks = [task for task in tube.select("ready") if task.utube == (lane if lane is None else str(lane).lower())]
        assert [(task.data, task.max_attempts) for task in tasks] == [
            (row["data"], row["max_attempts"]) for row in expected
        ]


def test_rows_with_a_key_keep_their_order_across_lanes(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utubettl")
    rows = [{"data": n, "utube": "ba"[n], "key": "k"} for n in range(2)]
    write(options, [rows], "data int, utube string, key string")
    assert [(task.data, task.utube) for task in tube.select("ready")] == [(0, "b")]


def test_rows_of_a_lane_become_one_run(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t", "utube")
    writer = source(options).writer(schema("data int, utube string"), overwrite=False)
    rows = [{"data": n, "utube": f"{n % 3}"} for n in range(30)]
    batch = batch_of(rows, "data int, utube string")
    runs = list(writer._payload.runs(Writers(writer._settings, queue), [batch]))
    assert [raws for _, raws in runs] == [[b"%d" % n for n in range(lane, 30, 3)] for lane in range(3)]


@pytest.mark.parametrize("ends", ["commit", "died"])
def test_rows_of_known_write_id_are_neither_encoded_nor_uploaded(
    queue: tubes.Queue, options: dict[str, str], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = queue.create_tube("t")
    overrides = {**options, "writeId": "2026-11-21"}
    first = source(overrides).writer(schema("data double"), overwrite=False)
    message: Any = first.write(iter([batch_of([{"data": 1.0}], "data double")]))
    if ends == "died":  # The driver died after the write was sealed.
        monkeypatch.setattr(bulk_write.Writer, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            first.commit([message])
        monkeypatch.undo()
    else:
        first.commit([message])
    again = source(overrides).writer(schema("data double"), overwrite=False)
    rows = iter([batch_of([{"data": NAN}], "data double")])
    message = again.write(rows)
    assert (message.chunks, list(rows)) == ([], [])
    again.commit([message])
    assert data(queue) == [1.0]
    tube.truncate()
    tube.drop()
    queue.create_tube("t")
    write(overrides, [[{"data": 2.0}]], "data double")
    assert data(queue) == [2.0], "a tube that was made again knows no writes"


def test_bad_row_value_is_reported_and_puts_nothing(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t", "utubettl")
    rows = [{"data": "x", "pri": 1}, {"data": "y", "pri": -1}]
    with pytest.raises(InvalidOption, match="pri=-1"):
        write(options, [rows], "data string, pri int")
    assert queue.tube("t").statistics().tasks["total"] == 0


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_bad_rows_option_buries_invalid_rows_with_their_values(
    queue: tubes.Queue, options: dict[str, str], delivery: str
) -> None:
    tube = queue.create_tube("t", "utubettl", ttl=60)
    rows: list[dict[str, Any]] = [{"url": f"{n}", "score": n / 2, "ttl": None, "key": None} for n in range(20)]
    rows[3]["score"] = float("nan")
    rows[11]["ttl"] = -1
    rows[19]["key"] = ""
    overrides = {**options, "delivery": delivery, "badRows": "bury"}
    write(overrides, [rows], "url string, score double, ttl int, key string")
    assert tube.statistics().tasks["ready"] == 17
    buried = {task.data["url"]: task for task in tube.select("buried")}
    assert [task.data for task in buried.values()] == [{**rows[3], "score": "NaN"}, rows[11], rows[19]]
    assert [task.utube for task in buried.values()] == [None] * 3
    for url, why in (("3", "no such number"), ("11", "ttl=-1"), ("19", "key=")):
        reason = buried[url].reason
        assert reason is not None
        assert reason.startswith("bad row: ")
        assert why in reason
    assert queue.admin.check("t") == []


MAPS = "array<struct<m: map<string,double>>>"
BAD_VALUES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "url string, score double",
        {"score": NAN},
        "row 3 (url='2'), ",
        "column score: codec 'json' cannot encode float nan: ",
    ),
    ("url string, score double, key string", {"score": NAN}, "row 3 (key='k2'), ", "column score: "),
    (
        f"url string, a {MAPS}",
        {"a": [{"m": []}, {"m": [("b", 1), ("c", NAN)]}]},
        "row 3 (url='2'), ",
        "column a[1].m['c']: ",
    ),
    ("n int, s struct<a: map<int,array<double>>>", {"s": {"a": [(7, [1.5, NAN])]}}, "row 3, ", "column s.a[7][1]: "),
    ("url string, ttl double", {"ttl": -1.5}, "row 3 (url='2'): ", "ttl=-1.5"),
    ("url string, max_attempts int, score double", {"max_attempts": 0}, "row 3 (url='2'): ", "max_attempts=0"),
]


@pytest.mark.parametrize(("ddl", "bad", "row", "what"), BAD_VALUES)
def test_error_of_bad_row_names_the_row_and_the_bad_value(
    queue: tubes.Queue, options: dict[str, str], ddl: str, bad: dict[str, Any], row: str, what: str
) -> None:
    tube = queue.create_tube("t", "utubettl")
    names = schema(ddl).names
    rows: list[dict[str, Any]] = [
        {name: value for name, value in (("url", str(n)), ("key", f"k{n}")) if name in names} for n in range(9)
    ]
    rows[2] |= bad
    # A later row, with an error that the encoder finds first, is not the one to name.
    rows[6] |= {"score": NAN} if "score" in names else {}
    writer = source(options).writer(schema(ddl), overwrite=False)
    with pytest.raises(tubes.TubesError, match=re.escape(row + what)):
        writer.write(batch_of(rows[part], ddl) for part in (slice(0, 2), slice(2, 9)))
    write({**options, "badRows": "bury"}, [rows[:3]], ddl)
    (buried,) = tube.select("buried")
    assert str(buried.reason).startswith("bad row: " + what)


def test_row_with_time_out_of_range_is_buried_with_its_other_values(
    queue: tubes.Queue, options: dict[str, str]
) -> None:
    tube = queue.create_tube("t")
    when = pa.array([0, 1_700_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    inside = pa.StructArray.from_arrays([pa.array(["a", "b" * 1000]), when], ["url", "when"])
    batch = pa.RecordBatch.from_arrays([inside], names=["data"])
    ddl = "data struct<url: string, when: timestamp>"
    with pytest.raises(CodecError, match="in a year from 1 to 9999"):
        source(options).writer(schema(ddl), overwrite=False).write(iter([batch]))
    writer = source({**options, "badRows": "bury"}).writer(schema(ddl), overwrite=False)
    writer.commit([writer.write(iter([batch]))])
    assert data(queue) == [{"url": "a", "when": "1970-01-01T00:00:00+00:00"}]
    (bad,) = tube.select("buried")
    assert bad.data["data"]["url"] == "b" * 1000
    assert "1700000000000000000" in bad.data["data"]["when"]


def test_map_with_duplicate_key_is_buried_with_both_values(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t")
    maps = pa.MapArray.from_arrays([0, 1, 3], pa.array(["a", "b", "b"]), pa.array([1, 2, 3]))
    batch = pa.RecordBatch.from_arrays([maps], names=["data"])
    overrides = {**options, "badRows": "bury", "delivery": "at-least-once"}
    source(overrides).writer(schema("data map<string,bigint>"), overwrite=False).write(iter([batch]))
    assert data(queue) == [{"a": 1}]
    (bad,) = tube.select("buried")
    assert bad.data == {"data": [{"key": "b", "value": 2}, {"key": "b", "value": 3}]}
    assert bad.reason is not None
    assert bad.reason.endswith("a map has the same key twice")


def test_too_deeply_nested_row_is_buried(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t")
    kind = "array<" * 400 + "date" + ">" * 400
    rows: list[dict[str, Any]] = [{"data": None}]
    batch = batch_of(rows, f"data {kind}")
    overrides = {**options, "badRows": "bury", "delivery": "at-least-once"}
    source(overrides).writer(schema(f"data {kind}"), overwrite=False).write(iter([batch]))
    assert [task.data for task in tube.select("buried")] == [{"data": None}]


def test_bad_rows_are_buried_with_any_codec(url: str, options: dict[str, str]) -> None:
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    with tubes.connect(url, codec="raw") as queue:
        tube = queue.create_tube("raw")
        overrides = {**options, "tube": "raw", "codec": "raw", "badRows": "bury"}
        write(overrides, [[{"data": b"x"}, {"data": None}, {"data": b"y"}]], "data binary")
        assert [task.data for task in tube.select("buried")] == [b'{"data": null}']
        assert [task.data for task in tube.take_many(3, timeout=0)] == [b"x", b"y"]
    overrides = {**options, "codec": "msgpack", "badRows": "bury"}
    with tubes.connect(url, codec="msgpack") as queue:
        queue.create_tube("t", "utubettl")
        write(overrides, [[{"when": moment, "pri": -1}, {"when": moment, "pri": 1}]], "when timestamp, pri int")
        bad = {task.data["pri"]: task.data for task in queue.tube("t").select("buried")}
        assert bad == {-1: {"when": "2020-01-01 00:00:00+00:00", "pri": -1}}


def test_json_format_writes_and_reads_text_unchanged(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    overrides = {**options, "dataFormat": "json"}
    write(overrides, [[{"data": '{"a":[1,2]}'}, {"data": '"text"'}, {"data": None}]], "data string")
    assert [row["data"] for row in read(overrides, "data string")] == ['{"a":[1,2]}', '"text"', "null"]
    assert data(queue) == [{"a": [1, 2]}, "text", None]
    for text in ("nonsense", '{"a":NaN}'):
        with pytest.raises(CodecError):
            write(overrides, [[{"data": text}]], "data string")


@pytest.mark.parametrize("codec", ["raw", "msgpack"])
def test_other_codecs_are_written_and_read(url: str, options: dict[str, str], codec: str) -> None:
    with tubes.connect(url, codec=codec) as queue:
        queue.create_tube("t")
        ddl, value = ("data binary", b"\xff\x00") if codec == "raw" else ("data string", "text")
        write({**options, "codec": codec}, [[{"data": value}]], ddl)
        assert [row["data"] for row in read({**options, "codec": codec}, ddl)] == [value]
        assert data(queue) == [value]


def test_snapshot_has_tasks_in_all_states(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utubettl")
    tube.put({"a": 1}, utube="h", pri=2)
    tube.put("taken", ttl=60)
    tube.put("delayed", delay=60)
    tube.put("dead", key="k", max_attempts=3).bury("404")
    tube.take(timeout=0)
    rows = {row["id"]: row for row in read(options)}
    assert {id: row["state"] for id, row in rows.items()} == {0: "r", 1: "t", 2: "~", 3: "!"}
    assert [rows[id]["data"] for id in range(4)] == ['{"a":1}', "taken", "delayed", "dead"]
    assert rows[1]["attempts"] == 1
    assert (rows[0]["utube"], rows[0]["pri"]) == ("h", 2)
    assert (rows[3]["reason"], rows[3]["key"], rows[3]["max_attempts"]) == ("404", "k", 3)
    assert rows[1]["expires"].timestamp() == pytest.approx(tube.peek(1).expires)
    assert rows[2]["due"].timestamp() == pytest.approx(tube.peek(2).due)
    assert rows[0]["created"].timestamp() == pytest.approx(tube.peek(0).created)
    assert tube.statistics().calls["take"] == 1


def test_context_is_read_and_written_as_a_map(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t")
    tube.put_many(
        [tubes.Item("a", context={"trace": "5", "": "caf\udce9"}), tubes.Item("b"), tubes.Item("c", context={"x": "y"})]
    )
    assert [row["context"] for row in read(options)] == [[("trace", "5"), ("", "caf?")], None, [("x", "y")]]
    rows = read(options, "data string, context map<string,string>")
    queue.create_tube("to")
    write({**options, "tube": "to"}, [rows], "data string, context map<string,string>")
    tasks = queue.tube("to").take_many(10, timeout=0)
    assert [(task.data, task.context) for task in tasks] == [
        ("a", {"trace": "5", "": "caf?"}), ("b", {}), ("c", {"x": "y"}),
    ]  # fmt: skip
    with pytest.raises(InvalidOption, match="context"):
        write({**options, "tube": "to"}, [[{"data": "x", "context": "y"}]], "data string, context string")


@pytest.mark.parametrize(
    ("state", "ids"), [("ready", [0]), ("!", [3]), ("taken,delayed", [1, 2]), ("r, t, ~, !", [0, 1, 2, 3])]
)
def test_snapshot_can_be_limited_to_states(
    queue: tubes.Queue, options: dict[str, str], state: str, ids: list[int]
) -> None:
    tube = queue.create_tube("t", "utubettl")
    tube.put("ready", pri=2)
    tube.put("taken")
    tube.put("delayed", delay=60)
    tube.put("dead").bury()
    tube.take(timeout=0)
    assert [row["id"] for row in read({**options, "state": state})] == ids


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("deleted", [range(0), range(50, 2950)])
def test_snapshot_is_complete_for_any_number_of_partitions(
    queue: tubes.Queue, options: dict[str, str], parts: int, deleted: range
) -> None:
    tube = queue.create_tube("t")
    tube.put_many(range(3000))
    tube.delete_many(deleted)
    rows = read({**options, "numPartitions": str(parts)}, "data string, id bigint")
    assert [row["id"] for row in rows] == [id for id in range(3000) if id not in deleted]
    assert all(row["data"] == str(row["id"]) for row in rows)


def test_snapshot_of_empty_tube_is_empty(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    assert read(options) == []


def test_undecodable_text_does_not_fail_read(url: str, options: dict[str, str]) -> None:
    with tubes.connect(url, codec="raw") as queue:
        queue.create_tube("t").put_many([b"\xff\xfe", b'"\\ud800"', b'"broken\\', b"fine"])
        rows = [row["data"] for row in read(options, "data string")]
        assert rows[3] == "fine"
        assert len(rows) == 4


def test_large_rows_are_written_in_several_chunks(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    large = "x" * (bulk_write.BYTES // 2)
    write(options, [[{"data": large}] * 5], "data string")
    assert [len(text) for text in data(queue)] == [len(large)] * 5


def test_surrogates_do_not_fail_read(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utube")
    tube.put("x", utube="caf\udce9", key="caf\udce9")
    tube.bury(0, "no file caf\udce9")
    (row,) = read(options)
    assert (row["utube"], row["key"], row["reason"]) == ("caf?", "caf?", "no file caf?")


def test_large_data_are_read_in_small_batches(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t").put_many(["x" * 1_000_000] * 30)
    reader = source(options).reader(schema("data string"))
    sizes = [batch.nbytes for part in reader.partitions() for batch in reader.read(part)]
    assert len(sizes) >= 3
    assert max(sizes) < 10_000_000


def test_partitions_are_at_most_as_many_as_tasks(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t").put_many(range(10))
    assert len(source({**options, "numPartitions": "3000"}).reader(schema("data string")).partitions()) == 10
