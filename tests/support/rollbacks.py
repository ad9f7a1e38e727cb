"""Servers that lose what was written last, and come back with what they had before."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support.servers import Servers, SocketServer, free_port
from tubes.conformance.bench import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tubes.testing import LocalServer


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


class Link(SocketServer):
    """Between a replica and its master, on loopback: it may stand still for good, and nobody notices."""

    def __init__(self, master: int) -> None:
        self.port = free_port()
        self._master = master
        self._stands_still = False
        super().__init__(socket.create_server(("127.0.0.1", self.port)))

    def stand_still(self) -> None:
        """The replica hears nothing any more."""
        self._stands_still = True

    def _serve(self, client: socket.socket) -> None:
        try:
            master = socket.create_connection(("127.0.0.1", self._master))
        except OSError:
            client.close()
            return
        threading.Thread(target=self._forward, args=(client, master, False), daemon=True).start()
        self._forward(master, client, True)

    def _forward(self, here: socket.socket, there: socket.socket, may_stand: bool) -> None:
        with suppress(OSError), here:
            while words := here.recv(65536):
                if not (may_stand and self._stands_still):
                    there.sendall(words)
        if not self._stands_still:
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)


class Replicated(Servers):
    """A master and its replica, between which there may be a link."""

    def __init__(self, program: str = "valkey", *, is_linked: bool = True) -> None:
        super().__init__(program, 2, repl_diskless_sync_delay=0)
        self._link = Link(self.ports[0]) if is_linked else None
        self.clients[1].execute_command("REPLICAOF", "127.0.0.1", self._link.port if self._link else self.ports[0])
        # A Sentinel looks at what a master has when it comes, and then every ten seconds.
        assert eventually(lambda: self._is_online(0))

    @property
    def master(self) -> int:
        """The number of the master."""
        return 0

    def _is_online(self, master: int) -> bool:
        here, there = (self.clients[number].info("replication") for number in (master, 1 - master))
        online = here["connected_slaves"] == 1 and here["slave0"]["state"] == "online"
        return bool(online and there["role"] == "slave" and there["master_link_status"] == "up")

    def replicate(self) -> None:
        """Wait until the replica has what the master has."""
        client = self.clients[self.master]
        client.set("tests:replicated", 1)
        assert client.wait(1, 5000) == 1

    def stall(self) -> None:
        """What is written from now on the replica does not get."""
        assert self._link is not None
        self._link.stand_still()

    def close(self) -> None:
        """End the link, the clients and the servers."""
        if self._link is not None:
            self._link.close()
        super().close()


class Promoted(Replicated):
    """Where clients find the master is a path, which leads to its replica once that is the master."""

    def __init__(self, program: str = "valkey") -> None:
        super().__init__(program)
        self._place = self.servers[0].folder / "master"
        self._place.symlink_to(self.servers[0].socket)

    @property
    def url(self) -> str:
        """Where clients find whoever is the master."""
        return f"unix://{self._place}"

    def promote(self) -> None:
        """The master is gone; its replica is the master."""
        self.servers[0].kill()
        self.clients[1].execute_command("REPLICAOF", "NO", "ONE")
        place = self._place.with_suffix(".new")
        place.symlink_to(self.servers[1].socket)
        os.replace(place, self._place)
