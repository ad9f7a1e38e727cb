"""One Spark for all tests of a process; a tube on a server for each."""

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

#: With a data source of somebody else, which Spark finds beside ours.
NEIGHBOUR = str(ROOT / "tests" / "spark" / "neighbour")


@cache
def folder() -> TemporaryDirectory[str]:
    """What every Spark of this process writes into."""
    return TemporaryDirectory(prefix="tubes-spark-", ignore_cleanup_errors=True)


@cache
def environment() -> dict[str, str]:
    """What a program needs in its environment to use a small, quick Spark: that of the examples."""
    known = local_spark.environment(Path(folder().name))
    return known | {"PYTHONPATH": os.pathsep.join([NEIGHBOUR, known["PYTHONPATH"]])}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    # Each of its tasks is tried twice, and its log of events is read.
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
    """Connections that other tests have left may lead to servers that are gone."""
    workers._idle.clear()
    yield
    workers._idle.clear()


@pytest.fixture
def queue(url: str) -> Iterator[tubes.Queue]:
    with tubes.connect(url) as queue:
        yield queue


@pytest.fixture
def options(url: str) -> dict[str, str]:
    """What every read and write of the tube `t` is told."""
    return {"url": url, "tube": "t"}
