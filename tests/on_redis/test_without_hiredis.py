"""Without the extra `hiredis`, redis-py packs and parses."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
sys.modules["hiredis"] = None
import tubes
from tubes.redis.transport import wire
from tubes.spark.server.bulk_read import BulkReader
assert wire.hiredis is None
with tubes.connect(sys.argv[1]) as queue, tubes.connect(sys.argv[1], session_ttl=31.0) as other:
    tube, others = queue.create_tube("t", "utubettl"), other.tube("t")
    for options in ({}, {"delay": 0, "ttl": 900, "pri": 1, "utube": "a b"}):
        put = others.put("now", **options)
        assert tube.take(timeout=0).ack().id == put.id
        consumer = threading.Thread(target=lambda: taken.append(tube.take(timeout=20)))
        taken = []
        consumer.start()
        while not tube.statistics().waiting:
            pass
        others.put("later", **options)
        consumer.join()
        assert taken[0].ack().data == "later"
    tube.put_many(range(3))
    assert sum(part.size for part in BulkReader(tube).read_range(0, 10)) == 3
    print("done")
"""


@pytest.mark.full
def test_calls_and_waits_work_without_hiredis(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, url], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr
