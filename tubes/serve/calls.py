"""The base class of requests about tubes, for all APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Receive, Scope

from tubes.serve.bodies import encode_reply
from tubes.serve.namespaces import Namespace
from tubes.serve.service import Service
from tubes.serve.tokens import Token


class BaseCall:
    """A request: its token, the namespace in its path, and its ASGI scope."""

    __slots__ = ("path", "receive", "scope", "service", "space", "token")

    def __init__(self, service: Service, token: Token, space: Namespace, scope: Scope, receive: Receive) -> None:
        self.service: Final = service
        self.token: Final = token
        self.space: Final = space
        self.scope: Final = scope
        self.receive: Final = receive
        self.path: Final[dict[str, str]] = scope["path_params"]


def size_of(data: bytes, options: Mapping[str, Any]) -> int:
    """Return the bytes of a task that count against a token's rate: its data and context."""
    context = options.get("context")
    return len(data) + (len(encode_reply(context)) if context else 0)
