"""Invalid options and schemas are reported by name before a query runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tubes
from tubes import InvalidOption, OptionNotSupported, TubeNotFound
from tubes.spark.settings import stream_settings, write_settings

from .objects import schema, source, write

ANY = "data string"


def refuse(act: Any, match: str) -> None:
    with pytest.raises(InvalidOption, match=match):
        act()


@pytest.mark.parametrize("missing", ["url", "tube"])
def test_missing_required_option_is_reported(options: dict[str, str], missing: str) -> None:
    del options[missing]
    refuse(lambda: source(options).reader(schema(ANY)), f'\\.option\\("{missing}"')


@pytest.mark.parametrize("url", ["memory://", "memory://shared", "file:jobs", "FILE:///jobs", "file:"])
def test_url_that_executors_cannot_share_is_refused(options: dict[str, str], url: str) -> None:
    refuse(lambda: source({**options, "url": url}).schema(), f"(?i)url='{url[:5]}.*: cannot be shared by Spark")


@pytest.mark.parametrize(
    "url", ["", "localhost", "localhost:6379", "redis//localhost", "rdis://h", "fil://h", "memori://", "kafka://h"]
)
def test_error_for_bad_url_offers_only_servers(options: dict[str, str], url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        source({**options, "url": url}).schema()
    assert "url=" in str(refused.value)
    assert not re.search("memory://|file:", str(refused.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "lost"),
        ("ids", ""),
        ("ids", "-5"),
        ("ids", "9-3"),
        ("ids", "1,2"),
        ("ids", "1" * 19),
        ("lane", ""),
        ("numPartitions", "0"),
        ("numPartitions", "many"),
        ("codec", "pickle"),
        ("dataFormat", "xml"),
    ],
)
def test_bad_read_option_is_reported_by_name(
    queue: tubes.Queue, options: dict[str, str], name: str, value: str
) -> None:
    queue.create_tube("t")
    refuse(lambda: source({**options, name: value}).reader(schema(ANY)), f"{name}={value!r}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", "0.5"),
        ("lease", "-1"),
        ("lease", "nan"),
        ("maxTasksPerTrigger", "0"),
        ("consumer", ""),
        ("countRetakes", "perhaps"),
        ("maxBytesPerTrigger", "64 mb/s"),
        ("maxBytesPerTrigger", "0"),
        ("minTasksPerTrigger", "0"),
        ("maxTriggerDelay", "15 min"),
        ("maxTriggerDelay", "-1"),
        ("maxTriggerDelay", "0s"),
        ("maxTasksPerTrigger", "1_0"),
        ("maxTasksPerTrigger", "9" * 5000),
        ("maxBytesPerTrigger", "1e999"),
        ("maxBytesPerTrigger", "1t"),
        ("lease", "4d"),
        ("state", "r"),
    ],
)
def test_bad_stream_option_is_reported_by_name(
    queue: tubes.Queue, options: dict[str, str], name: str, value: str
) -> None:
    queue.create_tube("t")
    refuse(lambda: source({**options, name: value}).streamReader(schema(ANY)), f"{name}='{value[:100]}|option='{name}'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delivery", "at-most-once"),
        ("batchSize", "-5"),
        ("ttl", "soon"),
        ("ttl", "-1"),
        ("delay", "nan"),
        ("pri", "1.5"),
        ("maxAttempts", "0"),
        ("onDuplicate", "raise"),
        ("timeout", "inf"),
    ],
)
def test_bad_write_option_is_reported_by_name(
    queue: tubes.Queue, options: dict[str, str], name: str, value: str
) -> None:
    queue.create_tube("t", "utubettl")
    refuse(lambda: source({**options, name: value}).writer(schema(ANY), overwrite=False), value)


def test_stream_refuses_write_id(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    refuse(
        lambda: source({**options, "writeId": "x"}).streamWriter(schema(ANY), overwrite=False),
        "option='writeId': does not apply to this",
    )


def test_unknown_option_is_reported_without_its_value(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    with pytest.raises(InvalidOption, match="option='redisurl'") as refused:
        source({**options, "redisUrl": "redis://:secret@host"}).reader(schema(ANY))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("maxTaskPerTrigger", "did you mean maxTasksPerTrigger\\?"),
        ("leese", "did you mean lease\\?"),
        ("startTime", "did you mean startingTime\\?"),
        ("batchSize", "'batchSize': does not apply to this read or write"),
    ],
)
def test_misspelled_option_gets_suggestion(queue: tubes.Queue, options: dict[str, str], key: str, match: str) -> None:
    queue.create_tube("t")
    refuse(lambda: source({**options, key: "2"}).streamReader(schema(ANY)), match)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5m", 90), ("1500ms", 1.5), ("2h", 7200), (" 1 D ", 86400)]
)
def test_all_time_options_accept_same_formats(text: str, seconds: float) -> None:
    overrides = {"url": "redis://localhost", "tube": "t"}
    of_streams = stream_settings({**overrides, "lease": text, "maxTriggerDelay": text})
    assert (of_streams.lease, of_streams.max_delay) == (seconds, seconds)
    names = ("timeout", "ttl", "ttr", "delay", "keyTtl")
    of_writes = write_settings({**overrides, **dict.fromkeys(names, text)}, streams=False)
    assert of_writes.timeout == seconds
    assert of_writes.defaults == dict.fromkeys(("ttl", "ttr", "delay", "key_ttl"), seconds)


def test_default_lease_outlasts_a_slow_restart_of_spark() -> None:
    assert stream_settings({"url": "redis://h", "tube": "t"}).lease >= 3 * 80, "a slow start took 80 s"


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("2k", 2048), ("2 KB", 2048), ("1.5mb", 3 << 19), ("1g", 1 << 30)]
)
def test_max_bytes_accepts_a_unit(text: str, size: int) -> None:
    assert stream_settings({"url": "redis://h", "tube": "t", "maxBytesPerTrigger": text}).max_bytes == size


def test_empty_lane_option_is_same_lane_as_in_put(queue: tubes.Queue, options: dict[str, str]) -> None:
    tube = queue.create_tube("t", "utube")
    write({**options, "utube": ""}, [[{"data": "x"}]], ANY)
    task = tube.take(timeout=0)
    assert task is not None
    tube.put("y", utube="")
    assert tube.take(timeout=0) is None, "both are in one lane"


def test_write_id_requires_exactly_once_delivery(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    overrides = {**options, "writeId": "x", "delivery": "at-least-once"}
    refuse(lambda: source(overrides).writer(schema(ANY), overwrite=False), "writeId='x'")


def test_timeout_option_sets_wait_for_room(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    writer = source({**options, "timeout": "1.5"}).writer(schema(ANY), overwrite=False)
    assert (writer._settings.timeout, writer._settings.defaults) == (1.5, {})


def test_overwrite_mode_is_refused(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    refuse(lambda: source(options).writer(schema(ANY), overwrite=True), "append")
    # Spark itself refuses the mode update.
    refuse(lambda: source(options).streamWriter(schema(ANY), overwrite=True), "micro-batch: use append$")


def test_missing_tube_is_reported_before_query_runs(options: dict[str, str]) -> None:
    for make in (
        lambda: source(options).reader(schema(ANY)),
        lambda: source(options).streamReader(schema(ANY)),
        lambda: source(options).writer(schema(ANY), overwrite=False),
        lambda: source(options).streamWriter(schema(ANY), overwrite=False),
    ):
        with pytest.raises(TubeNotFound):
            make()


def test_write_with_driver_option_creates_tube(queue: tubes.Queue, options: dict[str, str]) -> None:
    for _ in range(2):
        source({**options, "driver": "utube"}).writer(schema(f"{ANY}, utube string"), overwrite=False)
    assert queue.tube("t").driver.name == "utube"


def test_refused_write_does_not_create_tube(queue: tubes.Queue, options: dict[str, str]) -> None:
    for overrides, ddl in (
        ({"driver": "fifo"}, "data string, utube string"),
        ({"driver": "utube"}, "data string, ttl int"),
        ({"driver": "fifo", "pri": "3"}, "data string"),
        ({"driver": "fifo"}, "data string, extra int"),
    ):
        with pytest.raises(tubes.TubesError):
            source({**options, **overrides}).writer(schema(ddl), overwrite=False)
        assert queue.tubes() == []


@pytest.mark.parametrize(
    ("ddl", "match"),
    [
        ("data string, extra int", "'extra'"),
        ("utube string, pri int", "need a column data"),
        ("id bigint, url string", "'id'"),
        ("data string, pri double", "pri double"),
        ("data string, ttl string", "ttl string"),
        ("data string, key bigint", "key bigint"),
        ("data binary", "codec raw"),
        ("url string, UTUBE string", "'UTUBE'"),
        ("Data string", "'Data'"),
        ("data string, pri int, pri int", "'pri'"),
        ("data struct<a: int, b: int, a: string>", "'data.a': must occur only once"),
        ("url string, more array<struct<in: map<string, struct<b: int, b: int>>>>", "'more.in.b'"),
        ("data interval year to month", "data interval year to month"),
        ("url string, when struct<since: array<interval month>>", "when.since interval month"),
        ("data string, ttl interval year", "ttl interval year"),
        ("data map<struct<a: int>, string>", "JSON cannot have"),
        ("data variant", "data variant"),
        ("url string, more struct<raw: array<binary>>", "more.raw binary"),
        ("url string, parts array<variant>", "parts variant"),
    ],
)
def test_unsupported_column_type_or_name_is_refused(
    queue: tubes.Queue, options: dict[str, str], ddl: str, match: str
) -> None:
    queue.create_tube("t", "utubettl")
    refuse(lambda: source(options).writer(schema(ddl), overwrite=False), match)


@pytest.mark.parametrize("ddl", ["data string, utube string", "data string, ttl int"])
def test_column_unknown_to_driver_is_refused(queue: tubes.Queue, options: dict[str, str], ddl: str) -> None:
    queue.create_tube("t", "fifo")
    with pytest.raises(OptionNotSupported):
        source(options).writer(schema(ddl), overwrite=False)


@pytest.mark.parametrize(("codec", "ddl"), [("raw", "data string"), ("json", "data binary")])
def test_data_type_unsupported_by_codec_is_refused(
    queue: tubes.Queue, options: dict[str, str], codec: str, ddl: str
) -> None:
    queue.create_tube("t")
    refuse(lambda: source({**options, "codec": codec}).writer(schema(ddl), overwrite=False), "codec raw")


@pytest.mark.parametrize("ddl", ["nonsense string", "id string", "data binary"])
def test_schema_with_unknown_columns_is_refused(queue: tubes.Queue, options: dict[str, str], ddl: str) -> None:
    queue.create_tube("t")
    refuse(lambda: source(options).reader(schema(ddl)), "must be among tube string, id bigint")


@pytest.mark.parametrize(("name", "value"), [("lease", "1 minute"), ("maxTasksPerTrigger", "-1"), ("delivery", "once")])
def test_invalid_option_is_reported_when_source_is_loaded(options: dict[str, str], name: str, value: str) -> None:
    refuse(lambda: source({**options, name: value}).schema(), value)


def test_driver_option_must_match_existing_tube(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t", "utube")
    refuse(lambda: source({**options, "driver": "fifo"}).writer(schema(ANY), overwrite=False), "'utube'")
