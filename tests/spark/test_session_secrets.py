"""Passwords do not appear in Spark's output, logs and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tubes
from tubes.testing import LocalServer

pytestmark = pytest.mark.full

#: Spark hides values with "secret", "password" or "token" in them anyway.
PASSWORD = "swordfish4711"


@pytest.fixture
def read_log(spark: Any) -> Callable[[], str]:
    """Function that returns all log lines of the session so far."""

    def read() -> str:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        folder = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
        return "".join(file.read_text() for file in folder.rglob("*") if file.is_file() and file.suffix != ".crc")

    return read


def test_plans_logs_checkpoints_progress_and_errors_hide_password(
    spark: Any, queue: tubes.Queue, valkey: LocalServer, url: str, tmp_path: Path, read_log: Callable[[], str]
) -> None:
    from pyspark.errors import AnalysisException

    with valkey.client() as client:
        client.acl_setuser(
            "bob", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], channels=["*"], commands=["+@all"]
        )
    (tmp_path / "here").write_text(PASSWORD)
    by_file = {"url": url, "username": "bob", "passwordFile": str(tmp_path / "here"), "tube": "t"}
    literal = {"url": url, "username": "bob", "password": PASSWORD, "tube": "t"}
    in_url = {"url": url.replace("unix://", f"unix://bob:{PASSWORD}@"), "tube": "t"}
    queue.create_tube("t")
    outputs: list[str] = []

    def sql(statement: str) -> None:
        rows = spark.sql(statement).collect()
        outputs.append(str(rows))

    def clause(options: dict[str, str]) -> str:
        return ", ".join(f"{name} '{value}'" for name, value in options.items())

    sql(f"CREATE TABLE secrets USING tubes OPTIONS ({clause(by_file)})")
    try:
        sql("INSERT INTO secrets (data) VALUES ('one')")
        for statement in (
            "EXPLAIN EXTENDED SELECT * FROM",
            "SHOW CREATE TABLE",
            "DESCRIBE TABLE EXTENDED",
            "SELECT * FROM",
        ):
            sql(f"{statement} secrets")
        sql("SHOW TBLPROPERTIES secrets")
    finally:
        sql("DROP TABLE secrets")
    for options in (by_file, literal, in_url):
        sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING tubes OPTIONS ({clause(options)})")
        sql("EXPLAIN EXTENDED SELECT * FROM seen")
    for options in (literal, in_url):
        frame = spark.read.format("tubes").options(**options).load()
        frame.select("data").write.format("tubes").options(**options).mode("append").save()
        outputs += [repr(frame), frame._jdf.queryExecution().toString(), frame.schema.json()]
    with pytest.raises(AnalysisException, match="there is no tube 'none'") as refused:
        spark.read.format("tubes").options(**{**literal, "tube": "none"}).load().count()
    outputs.append(str(refused.value))
    writer = spark.readStream.format("tubes").options(**literal).load().select("data").writeStream.format("tubes")
    writer = writer.options(**in_url, delivery="exactly-once", checkpointLocation=str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    outputs += [json.dumps(query.lastProgress, default=str), query._jsq.explainInternal(True)]
    spark.sql("DROP VIEW seen")
    log = read_log()
    for kept in ("CreateTable", "AppendData", "(redacted)"):
        assert kept in log
    stored = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "here"]
    assert any(path.parent.name == "offsets" for path in stored)
    for text in [log, *outputs, *(path.read_text(errors="replace") for path in stored)]:
        assert PASSWORD not in text
