"""Fixtures: one Spark session per process, and one queue on a server per test."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import tubes
from tubes.spark import workers

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import local_spark  # noqa: E402

#: Folder with an unrelated data source, which Spark must discover together with ours.
NEIGHBOUR = str(ROOT / "tests" / "spark" / "neighbour")


@cache
def folder() -> TemporaryDirectory[str]:
    """Return the folder for all files of Spark in this process."""
    return TemporaryDirectory(prefix="tubes-spark-", ignore_cleanup_errors=True)


@cache
def environment() -> dict[str, str]:
    """Return the environment variables for a small, fast Spark, as in the examples."""
    known = local_spark.environment(Path(folder().name))
    return known | {"PYTHONPATH": os.pathsep.join([NEIGHBOUR, known["PYTHONPATH"]])}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    # Spark runs a failed task once more. A test reads the event log.
    events = {"enabled": "true", "compress": "false", "dir": tmp_path_factory.mktemp("events").as_uri()}
    builder = SparkSession.builder.master("local[2,2]")
    for name, value in events.items():
        builder = builder.config(f"spark.eventLog.{name}", value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    """Drop idle connections of other tests, whose servers may have stopped."""
    workers._idle.clear()
    yield
    workers._idle.clear()


@pytest.fixture
def queue(url: str) -> Iterator[tubes.Queue]:
    with tubes.connect(url) as queue:
        yield queue


@pytest.fixture
def options(url: str) -> dict[str, str]:
    """Options for all reads and writes of the tube `t`."""
    return {"url": url, "tube": "t"}
