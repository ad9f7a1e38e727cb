"""Tables of the catalog, without a JVM: with the options and schemas that Spark passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import StructType

import tubes
from tubes import InvalidOption
from tubes.spark.columns import schema_of

from .objects import batch_of, read, rows_of, schema, source


def create(options: dict[str, str]) -> StructType:
    """Return the schema that Spark stores for a table with these options."""
    added = {"provider": "tubes", "owner": "me", "comment": "pages", "team": "a property"}
    made = source({**added, **options, **{f"option.{name}": value for name, value in options.items()}}).schema()
    assert isinstance(made, StructType)
    return StructType.fromJson(json.loads(json.dumps(made.jsonValue())))


def insert(table: StructType, row: dict[str, Any], **options: str) -> None:
    writer = source(options).writer(table, overwrite=False)
    writer.commit([writer.write(iter([batch_of([row], schema_of("json"))]))])


def test_table_has_columns_of_read(options: dict[str, str]) -> None:
    for codec in ("json", "raw"):
        made = create({**options, "codec": codec})
        plain = schema(schema_of(codec))
        assert [(field.name, field.dataType) for field in made] == [(field.name, field.dataType) for field in plain]


def test_table_comment_shows_tube_but_hides_secrets(options: dict[str, str]) -> None:
    overrides = {"url": "redis://h/1?client_name=ann", "passwordFile": "/secret", "tube": "t"}
    assert create(overrides)["data"].metadata["comment"] == "tube t on redis://h/1?client_name=***"


def test_table_options_apply_to_reads_and_writes(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    table = create({**options, "state": "ready", "numPartitions": "2", "batchSize": "7", "lease": "30"})
    writer = source({}).writer(table, overwrite=False)
    assert writer._settings.batch_size == 7
    insert(table, {"data": "one"})
    reader = source({}).reader(table)
    assert reader._settings.num_partitions == 2
    assert [row["data"] for row in rows_of(reader, reader.partitions())] == ["one"]
    assert source({}).streamReader(table)._settings.lease == 30
    # Options of the query override those of the table. A query with its own tube ignores the table's options.
    assert source({"state": "buried"}).reader(table)._settings.states == {"!"}
    assert source({**options, "numPartitions": "1"}).reader(table)._settings.states > {"r"}
    with pytest.raises(InvalidOption, match="url=None: is required"):
        source({"tube": "t"}).reader(table)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"password": "horse"},
            r"^password='\*\*\*': would be stored in Spark's catalog in clear text: use passwordEnv or",
        ),
        (
            {"url": "redis://ann:horse@h"},
            r"^url='redis://\*\*\*@h': contains a user or a password, which would be stored in Spark",
        ),
        ({"url": "redis://h?password=horse"}, r"^url='redis://h\?password=\*\*\*': contains a user or a password"),
        ({"url": "redis://h?username=horse"}, r"^url='redis://h\?username=\*\*\*': contains a user or a password"),
        ({"url": "redis://h?passWord=horse"}, r"^url='redis://h\?passWord=\*\*\*': has an unknown setting 'passWord'"),
        ({"url": "redis://h?pwd=horse"}, r"^url='redis://h\?pwd=\*\*\*': has an unknown setting 'pwd'"),
        ({"url": "rediss://h?ssl_password=horse"}, r"^url='rediss://h\?ssl_password=\*\*\*': contains a user or a pa"),
        ({"lease": "long"}, "^lease='long'"),
        ({"pasword": "horse"}, "^option='pasword': is unknown here"),
        ({"writeId": "x"}, "^writeId='x': names one write: a second INSERT would put nothing$"),
        ({"location": "file:/t"}, "^LOCATION='file:/t': is for files: a table names its tube$"),
    ],
)
def test_table_with_bad_options_is_not_made(options: dict[str, str], more: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why) as refused:
        create({**options, **more})
    assert "horse" not in str(refused.value)


def test_table_with_own_columns_is_refused(queue: tubes.Queue, options: dict[str, str]) -> None:
    for use in (source({}).reader, source({}).streamReader, lambda it: source({}).writer(it, overwrite=False)):
        with pytest.raises(InvalidOption, match="Spark loses the options of a table that declares columns"):
            use(schema("data string"))


@pytest.mark.parametrize(
    ("driver", "column"),
    [("fifo", {"id": 1}), ("fifo", {"state": "r"}), ("fifo", {"utube": "a"}), ("utube", {"due": 0})],
)
def test_column_without_put_option_must_be_null(
    queue: tubes.Queue, options: dict[str, str], driver: str, column: dict[str, Any]
) -> None:
    queue.create_tube("t", driver)
    table = create(options)
    with pytest.raises(InvalidOption, match=f"column='{next(iter(column))}': must be null: a put to tube 't' does not"):
        insert(table, {"data": "one", **column})
    insert(table, {"data": "two", "key": "once"})
    assert [(row["data"], row["key"]) for row in read(options)] == [("two", "once")]
