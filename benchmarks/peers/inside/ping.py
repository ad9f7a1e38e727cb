"""The yardstick: PING over a raw socket, packed ahead, its answer not parsed."""

import socket

from benchmarks.peers.inside import told

_socket = socket.create_connection((told.HOST, told.PORT)) if told.PORT else socket.socket()
_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def put(payload: str) -> None:
    """A trip."""
    _socket.sendall(b"*1\r\n$4\r\nPING\r\n")
    _socket.recv(64)
