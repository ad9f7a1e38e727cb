"""The yardstick: PING over a raw socket, with a prepared request and an unparsed reply."""

import socket

from benchmarks.peers.inside import settings

_socket = socket.create_connection((settings.HOST, settings.PORT)) if settings.PORT else socket.socket()
_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def put(payload: str) -> None:
    """Make one round trip."""
    _socket.sendall(b"*1\r\n$4\r\nPING\r\n")
    _socket.recv(64)
