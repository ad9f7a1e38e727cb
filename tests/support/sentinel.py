"""A real master, its replica, and a Sentinel that switches their roles."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

import redis

from tests.contract.bench import eventually
from tests.support.rollbacks import Replicated
from tests.support.servers import free_port
from tubes.testing import LocalServer, server_program

#: The name of the service.
SERVICE = "load"
# Milliseconds after which the Sentinel considers a silent server down.
PATIENCE = 500


class Watched(Replicated):
    """A master and its replica with a Sentinel."""

    def __init__(self, program: str = "valkey", patience: int = PATIENCE, *, is_linked: bool = False) -> None:
        super().__init__(program, is_linked=is_linked)
        self._folder = tempfile.TemporaryDirectory(prefix="tubes-")
        self._port = free_port()
        self._sentinel = LocalServer(str(self._write(program, patience)), port=self._port)
        self.sentinel: Any = redis.Redis(port=self._port, socket_timeout=5)
        assert eventually(self.is_healthy), "the Sentinel did not find the replica"

    def _write(self, program: str, patience: int) -> Path:
        """Write a program that runs a Sentinel, with its own settings file, because a Sentinel rewrites it.

        After the failover timeout, it connects a replica directly to its master.
        """
        settings = Path(self._folder.name) / "sentinel.conf"
        settings.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.ports[0]} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {patience}\n"
            f"sentinel failover-timeout {SERVICE} {60_000 if self._link else 3000}\n"
        )
        start = Path(self._folder.name) / "sentinel"
        start.write_text(f'#!/bin/sh\nexec {shlex.quote(str(server_program(program)))} {settings} --sentinel "$@"\n')
        start.chmod(0o700)
        return start

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"redis+sentinel://127.0.0.1:{self._port}/{SERVICE}"

    @property
    def master(self) -> int:
        """Return the number of the master according to the Sentinel."""
        _, port = self.sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return self.ports.index(int(port))

    def is_healthy(self) -> bool:
        """Return True if the replica of the master is up to date and the Sentinel knows both."""
        try:
            known: Any = self.sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE)
            return len(known) == 1 and self._is_online(self.master)
        except (redis.RedisError, OSError):
            return False

    def switch_roles(self) -> None:
        """Switch master and replica in a coordinated failover: the master waits until the replica has all data."""
        master = self.master
        assert eventually(self._start_failover), "the Sentinel is busy"
        assert eventually(lambda: self.master != master and self.is_healthy())

    def _start_failover(self) -> bool:
        try:
            self.sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE, "COORDINATED")
        except redis.ResponseError as error:
            # The previous failover is in progress, or the Sentinel has not seen yet that the replica is up.
            if "INPROG" not in str(error) and "NOGOODSLAVE" not in str(error):
                raise
            return False
        return True

    def fail_over(self) -> None:
        """Kill the master and wait until the Sentinel has promoted its replica."""
        master = self.master
        self.servers[master].kill()
        assert eventually(lambda: self.master != master and self.clients[1 - master].info()["role"] == "master")

    def close(self) -> None:
        """Stop the Sentinel and the servers."""
        self.sentinel.close()
        self._sentinel.close()
        super().close()
        self._folder.cleanup()
