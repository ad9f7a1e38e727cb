"""A TCP proxy that cuts connections before a reply, or forwards nothing for a while."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Final

from benchmarks.peers.servers import free_port

#: The share of replies after whose request the connection is cut.
CUT: Final = 0.02


class Proxy:
    """A proxy on its own port of loopback, for all connections to a server."""

    def __init__(self, port: int) -> None:
        self.port: Final = free_port()
        self.cutting = False
        #: The times of the cuts, by `time.monotonic`.
        self.cuts: Final[list[float]] = []
        #: Cleared during a partition: both sides stay connected, and their bytes wait as if they were sent again.
        self.connected: Final = threading.Event()
        self.connected.set()
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self.connected.wait()
            with socket.create_connection(("127.0.0.1", self._server_port)) as server:
                for side in (client, server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    ready, _, _ = select.select([client, server], [], [])
                    self.connected.wait()
                    for side in ready:
                        data = side.recv(65536)
                        if not data:
                            return
                        if side is server and self.cutting and random.random() < CUT:
                            self.cuts.append(time.monotonic())
                            return
                        (client if side is server else server).sendall(data)
