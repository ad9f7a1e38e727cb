"""A server for tests ends together with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tubes.testing import LocalServer

#: Timeout in real seconds for the end of a process.
PATIENCE = 30

PROGRAM = """
import signal, sys
from tubes.testing import LocalServer
signal.signal(signal.SIGINT, signal.SIG_DFL)
server = LocalServer()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    """Return True if the process is alive. A zombie counts as dead."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGTERM"])
def test_signal_to_process_group_ends_its_server(name: str, tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert program.stdout is not None
    pid, folder = program.stdout.readline().split()
    assert is_running(int(pid))
    os.killpg(program.pid, signal.Signals[name])
    program.communicate()
    deadline = time.monotonic() + PATIENCE
    while is_running(int(pid)) or Path(folder).exists():
        assert time.monotonic() < deadline, f"server {pid} in {folder} outlives its process"
        time.sleep(0.02)


def test_a_server_that_is_killed_starts_again_where_it_was() -> None:
    with LocalServer() as server:
        socket = server.socket
        server.kill()
        assert server.folder.is_dir()
        server.start()
        assert (server.client().ping(), server.socket) == (True, socket)
        folder = server.folder
    assert not folder.exists()
