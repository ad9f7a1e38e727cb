"""A proxy that forwards requests and cuts connections before the replies come back."""

from __future__ import annotations

import random
import select
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.support.servers import SocketServer, unix_listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.testing import LocalServer


class Proxy(SocketServer):
    """A proxy between clients and a server, on a separate unix socket.

    `cuts`: called with every request; True cuts the connection after the request was forwarded. The server executes it,
    but the client gets no reply. `mute`: True cuts connections when a reply arrives. `lies`: called with every request;
    returns a function that replaces the server's reply, or None.
    """

    def __init__(self, server: LocalServer, cuts: Callable[[bytes], bool] = lambda request: False) -> None:
        self.cuts = cuts
        self.count = 0
        #: The delay of each reply in seconds.
        self.delay = 0.0
        self.mute = False
        self.lies: Callable[[bytes], Callable[[bytes], bytes] | None] = lambda request: None
        self._server = server
        self._socket = str(Path(server.folder) / f"proxy{uuid4().hex[:8]}")
        super().__init__(unix_listener(self._socket))

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"unix://{self._socket}"

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, suppress(OSError):
            server.connect(str(self._server.socket))
            lie: Callable[[bytes], bytes] | None = None
            while True:
                readable, _, _ = select.select([client, server], [], [])
                if server in readable:
                    reply = server.recv(65536)
                    if not reply or self.mute:
                        return
                    time.sleep(self.delay)
                    client.sendall(reply if lie is None else lie(reply))
                    lie = None
                if client in readable:
                    request = client.recv(65536)
                    if not request:
                        return
                    cut, lie = self.cuts(request), self.lies(request)
                    server.sendall(request)
                    if cut:
                        self.count += 1
                        if random.random() < 0.8:
                            server.settimeout(0.2)
                            server.recv(65536)
                        return
