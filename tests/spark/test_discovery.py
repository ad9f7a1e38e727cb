"""Spark discovers ours and other data sources, even if Spark is old or PyArrow is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tubes

from .conftest import environment

#: Discovers data sources with Spark's own code, and uses ours.
PROGRAM = """
import io, struct, sys
from pyspark.sql import datasource
from pyspark.sql.worker import lookup_data_sources
{hide}
found = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), found)
assert found.getvalue()[:4] == struct.pack("!i", 2), found.getvalue()
assert b"neighbour" in found.getvalue()
from pyspark.sql.types import StructType
from pyspark_tubes import DefaultSource
for use, more in ("reader", ()), ("writer", (False,)), ("streamReader", ()), ("streamWriter", (False,)):
    try:
        getattr(DefaultSource({{"url": sys.argv[1], "tube": "t"}}), use)(StructType().add("data", "string"), *more)
        print(use, "works")
    except Exception as error:
        print(use, type(error).__name__)
"""
#: Statements that remove the features missing in Spark 4.1, and in Spark 4.0.
NO_LIMITS = "sys.modules['pyspark.sql.streaming.datasource'] = None"
NO_ARROW_SINK = f"{NO_LIMITS}; del datasource.DataSourceStreamArrowWriter"
WORKS, OLD, MISSING = "works", "SparkTooOld", "ExtraMissing"


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("hide", "outcomes"),
    [
        ("", [WORKS, WORKS, WORKS, WORKS]),
        (NO_LIMITS, [WORKS, WORKS, OLD, WORKS]),
        (NO_ARROW_SINK, [WORKS, WORKS, OLD, OLD]),
        ("sys.modules['pyarrow'] = None", [MISSING] * 4),
    ],
    ids=["now", "4.1", "4.0", "no pyarrow"],
)
def test_missing_dependency_does_not_break_data_source_discovery(
    queue: tubes.Queue, url: str, hide: str, outcomes: list[str]
) -> None:
    queue.create_tube("t")
    program = [sys.executable, "-c", PROGRAM.format(hide=hide), url]
    run = subprocess.run(program, env={**os.environ, **environment()}, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    uses = ("reader", "writer", "streamReader", "streamWriter")
    assert run.stdout.splitlines() == [f"{use} {outcome}" for use, outcome in zip(uses, outcomes, strict=True)]
