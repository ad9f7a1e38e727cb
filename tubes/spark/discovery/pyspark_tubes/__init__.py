"""What Spark looks for: it loads `DefaultSource` of every top-level module `pyspark_…`.

So `format("tubes")` works where the package is installed, and nothing needs to be registered.
"""

from tubes.spark.source import TubesDataSource as DefaultSource

__all__ = ["DefaultSource"]
