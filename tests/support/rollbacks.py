"""Servers that lose their latest writes and restart with an earlier state."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.contract.bench import eventually
from tests.support.servers import Servers, SocketServer, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tubes.testing import LocalServer


def keep(server: LocalServer) -> None:
    """Save the current state of the server."""
    with server.client() as client:
        client.save()


def roll_back(server: LocalServer) -> None:
    """Kill the server and restart it with the state saved last."""
    server.kill()
    server.start()


def log_of(server: LocalServer) -> Path:
    """Return the log of a server with `appendonly`."""
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    return log


class Link(SocketServer):
    """A link between a replica and its master on loopback, which may stall without closing connections."""

    def __init__(self, master: int) -> None:
        self.port = free_port()
        self._master = master
        self._is_stopped = False
        super().__init__(socket.create_server(("127.0.0.1", self.port)))

    def stop_replication(self) -> None:
        """Stop forwarding data to the replica."""
        self._is_stopped = True

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
                if not (may_stand and self._is_stopped):
                    there.sendall(words)
        if not self._is_stopped:
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)


class Replicated(Servers):
    """A master and its replica, with an optional link between them."""

    def __init__(self, program: str = "valkey", *, is_linked: bool = True) -> None:
        super().__init__(program, 2, repl_diskless_sync_delay=0)
        self._link = Link(self.ports[0]) if is_linked else None
        self.clients[1].execute_command("REPLICAOF", "127.0.0.1", self._link.port if self._link else self.ports[0])
        # A Sentinel reads the replicas of a master when it starts, and then every ten seconds.
        assert eventually(lambda: self._is_online(0))

    @property
    def master(self) -> int:
        """Return the number of the master."""
        return 0

    def _is_online(self, master: int) -> bool:
        here, there = (self.clients[number].info("replication") for number in (master, 1 - master))
        online = here["connected_slaves"] == 1 and here["slave0"]["state"] == "online"
        return bool(online and there["role"] == "slave" and there["master_link_status"] == "up")

    def replicate(self) -> None:
        """Wait until the replica has all data of the master."""
        client = self.clients[self.master]
        client.set("tests:replicated", 1)
        assert client.wait(1, 5000) == 1

    def stall(self) -> None:
        """Keep later writes from the replica."""
        assert self._link is not None
        self._link.stop_replication()

    def close(self) -> None:
        """Stop the link, the clients and the servers."""
        if self._link is not None:
            self._link.close()
        super().close()


class Promoted(Replicated):
    """Servers whose clients reach the master by a path, which leads to the replica after its promotion."""

    def __init__(self, program: str = "valkey") -> None:
        super().__init__(program)
        self._place = self.servers[0].folder / "master"
        self._place.symlink_to(self.servers[0].socket)

    @property
    def url(self) -> str:
        """Return the URL of the current master."""
        return f"unix://{self._place}"

    def promote(self) -> None:
        """Kill the master and make its replica the master."""
        self.servers[0].kill()
        self.clients[1].execute_command("REPLICAOF", "NO", "ONE")
        place = self._place.with_suffix(".new")
        place.symlink_to(self.servers[1].socket)
        os.replace(place, self._place)
