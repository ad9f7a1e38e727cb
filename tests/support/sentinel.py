"""A real master, its replica, and a Sentinel that makes the one the other."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

import redis

from tests.support.rollbacks import Replicated
from tests.support.servers import free_port
from tubes.conformance.bench import eventually
from tubes.testing import LocalServer, server_program

#: The name of the service.
SERVICE = "load"
# Milliseconds after which a server that does not answer is given up.
PATIENCE = 500


class Watched(Replicated):
    """A master and its replica, of which a Sentinel makes the one the other."""

    def __init__(self, program: str = "valkey", patience: int = PATIENCE, *, is_linked: bool = False) -> None:
        super().__init__(program, is_linked=is_linked)
        self._folder = tempfile.TemporaryDirectory(prefix="tubes-")
        self._port = free_port()
        self._sentinel = LocalServer(str(self._write(program, patience)), port=self._port)
        self.sentinel: Any = redis.Redis(port=self._port, socket_timeout=5)
        assert eventually(self.is_well), "the Sentinel did not find the replica"

    def _write(self, program: str, patience: int) -> Path:
        """A program that runs a Sentinel; it writes its settings down, so these have a file of their own.

        After that timeout it has a replica follow its master without a detour.
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
        """Where clients find it."""
        return f"redis+sentinel://127.0.0.1:{self._port}/{SERVICE}"

    @property
    def master(self) -> int:
        """The number of the master, by what the Sentinel says."""
        _, port = self.sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return self.ports.index(int(port))

    def is_well(self) -> bool:
        """Whether the master has a replica that is up to date, and the Sentinel knows of both."""
        try:
            known: Any = self.sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE)
            return len(known) == 1 and self._is_online(self.master)
        except (redis.RedisError, OSError):
            return False

    def change(self) -> None:
        """Have master and replica change places, in agreement: the master waits until the replica has everything."""
        master = self.master
        assert eventually(self._begins_to_change), "the Sentinel is busy"
        assert eventually(lambda: self.master != master and self.is_well())

    def _begins_to_change(self) -> bool:
        try:
            self.sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE, "COORDINATED")
        except redis.ResponseError as error:
            # It is not done with the one before, or has not seen yet that the replica is well.
            if "INPROG" not in str(error) and "NOGOODSLAVE" not in str(error):
                raise
            return False
        return True

    def fail_over(self) -> None:
        """The master is gone; answers when the Sentinel has made its replica the master."""
        master = self.master
        self.servers[master].kill()
        assert eventually(lambda: self.master != master and self.clients[1 - master].info()["role"] == "master")

    def close(self) -> None:
        """End the Sentinel and the servers."""
        self.sentinel.close()
        self._sentinel.close()
        super().close()
        self._folder.cleanup()
