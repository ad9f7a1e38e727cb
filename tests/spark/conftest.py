"""One Spark for all tests of a process; a tube on a server for each."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import tubes
from tubes.spark import workers
from tubes.testing import java_home

ROOT = Path(__file__).parent.parent.parent
#: Where Spark finds data sources by itself: an installed package is on its path anyway, a checkout is not.
PATHS = [str(ROOT), str(ROOT / "tubes" / "spark" / "discovery"), str(ROOT / "tests" / "spark" / "neighbour")]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@cache
def spark_home() -> TemporaryDirectory[str]:
    """The Spark of the wheel, without its second copy of PySpark: a zip, which each Python worker compiles anew."""
    package = find_spec("pyspark")
    assert package is not None
    assert package.submodule_search_locations
    folder = TemporaryDirectory(prefix="tubes-spark-")
    for part in ("bin", "jars"):
        (Path(folder.name) / part).symlink_to(Path(package.submodule_search_locations[0]) / part)
    return folder


def environment() -> dict[str, str]:
    """What a program needs that uses Spark here; there is always a Java, if only that of a wheel."""
    home = java_home()
    assert home is not None, "no Java: neither the system's nor the extra java"
    known = os.environ.get("PYTHONPATH", "")
    paths = [*PATHS, *(part for part in known.split(os.pathsep) if part and part not in PATHS)]
    return {
        "JAVA_HOME": home,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_HOME": spark_home().name,
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,2]").appName("tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    events = {"enabled": "true", "compress": "false", "dir": tmp_path_factory.mktemp("events").as_uri()}
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
