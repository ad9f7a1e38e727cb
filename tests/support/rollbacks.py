"""Servers that lose what was written last, and come back with what they had before."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from tests.support.cluster import free_port
from tubes.conformance.bench import eventually
from tubes.testing import LocalServer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


def keep(server: LocalServer) -> None:
    """What the server has now outlives it."""
    with server.client() as client:
        client.save()


def roll_back(server: LocalServer) -> None:
    """Kill the server; it comes back as it was when it was kept last."""
    server.kill()
    server.start()


def log_of(server: LocalServer) -> Path:
    """Where a server with `appendonly` writes down what it does."""
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    return log


class Link:
    """Between a replica and its master, on loopback: it may stand still for good, and nobody notices."""

    def __init__(self, master: int) -> None:
        self.port = free_port()
        self._master = master
        self._stands_still = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def stand_still(self) -> None:
        """The replica hears nothing any more."""
        self._stands_still = True

    def _accept(self) -> None:
        while True:
            try:
                replica, _ = self._listener.accept()
            except OSError:
                return
            try:
                master = socket.create_connection(("127.0.0.1", self._master))
            except OSError:
                replica.close()
                continue
            for ends in ((replica, master, False), (master, replica, True)):
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, here: socket.socket, there: socket.socket, may_stand: bool) -> None:
        with suppress(OSError), here:
            while words := here.recv(65536):
                if not (may_stand and self._stands_still):
                    there.sendall(words)
        if not self._stands_still:
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let nobody through any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Pair:
    """A master and its replica; where clients find the master is a path that may lead elsewhere."""

    def __init__(self, program: str = "valkey") -> None:
        port = free_port()
        self._servers = [
            LocalServer(program, port=port, repl_diskless_sync_delay=0),
            LocalServer(program),
        ]
        self._link = Link(port)
        self._place = self._servers[0].folder / "master"
        self._place.symlink_to(self._servers[0].socket)
        replica: Any = self._servers[1].client()
        self._replica = replica
        replica.execute_command("REPLICAOF", "127.0.0.1", self._link.port)
        assert eventually(lambda: bool(replica.info("replication")["master_link_status"] == "up"))

    @property
    def url(self) -> str:
        """Where clients find whoever is the master."""
        return f"unix://{self._place}"

    def replicate(self) -> None:
        """Wait until the replica has what the master has."""
        client: Any = self._servers[0].client()
        with client:
            client.set("tests:replicated", 1)
            assert client.wait(1, 5000) == 1

    def stall(self) -> None:
        """What is written from now on the replica does not get."""
        self._link.stand_still()

    def promote(self) -> None:
        """The master is gone; its replica is the master."""
        self._servers[0].kill()
        self._replica.execute_command("REPLICAOF", "NO", "ONE")
        place = self._place.with_suffix(".new")
        place.symlink_to(self._servers[1].socket)
        os.replace(place, self._place)

    def close(self) -> None:
        """End it."""
        self._link.close()
        self._replica.close()
        for server in reversed(self._servers):
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
