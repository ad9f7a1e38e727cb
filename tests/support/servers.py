"""Several servers at once, and listeners in front of one; all of them stop at the end of their block."""

from __future__ import annotations

import random
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Self

from tubes.testing import LocalServer


def free_port() -> int:
    """Return an unused port whose cluster bus port (10000 above it) is unused too."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        try:
            for one in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port


class Closing(ABC):
    """A context manager that closes at the end of its block."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Servers(Closing):
    """Several servers on loopback, and a client of each."""

    def __init__(self, program: str, count: int, **settings: Any) -> None:
        self.ports = [free_port() for _ in range(count)]
        self.servers = [LocalServer(program, port=port, **settings) for port in self.ports]
        self.clients: list[Any] = [server.client() for server in self.servers]

    def close(self) -> None:
        """Stop the clients and the servers."""
        for client in self.clients:
            client.close()
        for server in reversed(self.servers):
            server.close()


class SocketServer(Closing):
    """A server that accepts connections until it is closed, with a thread for each."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        listener.listen(512)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    @abstractmethod
    def _serve(self, client: socket.socket) -> None:
        """Serve one connection until it ends."""

    def close(self) -> None:
        """Stop accepting connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def unix_listener(path: str) -> socket.socket:
    """Return a socket bound to this path."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    return listener
