"""Operations: what a method does on a path, what it is allowed to, and what it takes and returns."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tubes.drivers.driver import check_namespace, check_tube_name
from tubes.errors import InvalidOption
from tubes.serve.bodies import from_json, object_of, read_body
from tubes.serve.calls import BaseCall
from tubes.serve.namespaces import Namespace
from tubes.serve.native import schemas
from tubes.serve.native.schemas import Check, Fields, Schema
from tubes.serve.service import Service
from tubes.serve.tokens import Token

Handler: TypeAlias = "Callable[[Call], Awaitable[Response]]"
#: A `traceparent` of the W3C.
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,64}")
#: What the paths of all operations begin with.
ROOT: Final = "/v1/{namespace}"
#: The parts of paths that a client fills in.
PATH: Final[Fields] = {
    "namespace": {**schemas.NAMESPACE, "description": "A namespace; `_`: the tubes that are in none."},
    "tube": {**schemas.TUBE, "description": "The name of a tube, where a / is %2F."},
    "id": schemas.WHOLE,
    "lease": schemas.LEASE,
    "lane": schemas.NONEMPTY,
    "session": {"type": "string", "minLength": 32},
}
_CHECK_ID: Final = schemas.compiled(PATH["id"])


class Call(BaseCall):
    """A request to one operation."""

    __slots__ = ("operation",)

    def __init__(
        self, service: Service, operation: Operation, token: Token, space: Namespace, scope: Scope, receive: Receive
    ) -> None:
        super().__init__(service, token, space, scope, receive)
        self.operation: Final = operation

    @property
    def tube(self) -> str:
        """The name of the tube in the path."""
        return self.path["tube"]

    @property
    def task(self) -> int:
        """The id of the task in the path."""
        return int(_CHECK_ID("id", _typed(self.path["id"], PATH["id"])))

    def check(self, right: str, tube: str) -> None:
        """Raise `HTTPException(403)` unless the token may do this."""
        if not self.token.may(right, self.space.name, check_tube_name(tube)):
            raise HTTPException(403, f"the token has no right to {right} in tube {tube!r} of {self.space.name!r}")

    def url(self, *segments: object) -> str:
        """The path of something in this namespace."""
        parts = ("v1", self.space.name, *map(str, segments))
        root: str = self.scope.get("root_path", "")
        return root + "".join("/" + quote(part, safe="") for part in parts)

    def query(self) -> dict[str, Any]:
        """The parameters of the query that the operation has, each with the type of its schema."""
        text: bytes = self.scope["query_string"]
        if not text:
            return {}
        found: dict[str, Any] = {}
        for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
            if name in found:
                raise InvalidOption(option=name, value=value, rule="is there twice")
            found[name] = _typed(value, self.operation.query.get(name, schemas.TEXT))
        self.operation.check_query("query", found)
        return found

    @property
    def trace(self) -> dict[str, str]:
        """The trace of the request, as the context of a task carries it."""
        found = {
            name.decode(): value.decode("latin-1")
            for name, value in self.scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        return found if _TRACE.fullmatch(found.get("traceparent", "")) else {}

    async def raw(self) -> bytes:
        """The body as it is."""
        return await read_body(self.scope, self.receive, self.service.longest_body(self.token))

    async def body(self) -> dict[str, Any]:
        """The members of the JSON body."""
        found = object_of(await self.raw())
        self.operation.check_body("body", found)
        return found


@dataclass(frozen=True)
class Operation:
    """One method on one path. Calling it handles a request."""

    method: str
    path: str
    handler: Handler
    #: The right that it needs in the tube of the path; without one in any tube of the namespace: then it looks closer.
    right: str
    body: Schema = field(default_factory=lambda: schemas.a_request({}))
    query: Fields = field(default_factory=dict[str, Schema])
    #: Rules of the query beside those of its members.
    rules: Schema = field(default_factory=dict[str, Any])
    #: What a reply is, by its status: a schema; None: it has no body.
    replies: Mapping[int, Schema | None] = field(default_factory=dict[int, "Schema | None"])
    #: Whether the body is any bytes.
    takes_bytes: bool = False
    #: What a reply with a body is.
    media_type: str = "application/json"

    @cached_property
    def check_body(self) -> Check:
        """Check the members of a body."""
        return schemas.compiled(self.body)

    @cached_property
    def check_query(self) -> Check:
        """Check the parameters of a query."""
        return schemas.compiled(schemas.a_request(self.query, **self.rules))

    @property
    def name(self) -> str:
        """A name that no other operation has."""
        return self.handler.__name__

    @property
    def about(self) -> str:
        """What it does."""
        return (self.handler.__doc__ or "").strip()


def operation(method: str, path: str, right: str, **about: Any) -> Callable[[Handler], Operation]:
    """Make an operation of a function; `path` is what follows `/v1/{namespace}`."""
    return lambda handler: Operation(method, ROOT + path, handler, right, **about)


class _Endpoint:
    """The operations of one path, as an application."""

    def __init__(self, service: Service, operations: dict[str, Operation]) -> None:
        self._service: Final = service
        self._operations: Final = operations
        self._allow: Final = ", ".join(operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        operation = self._operations.get(scope["method"])
        if operation is None:
            raise HTTPException(405, f"this path has {self._allow}", {"allow": self._allow})
        path: dict[str, str] = scope["path_params"]
        token = self._service.who(scope)
        if not _may(token, operation.right, path):
            where = f"tube {path['tube']!r} of {path['namespace']!r}" if "tube" in path else repr(path["namespace"])
            raise HTTPException(403, f"the token has no right to {operation.right} in {where}")
        if token.rates:
            await self._service.count(token, operation.right)
        space = await self._service.namespaces.get(path["namespace"])
        call = Call(self._service, operation, token, space, scope, receive)
        if not operation.query:
            call.query()  # Refuses what there may be.
        # Without tokens there is nothing to count.
        with self._service.inside(token) if token.id else nullcontext():
            space.users += 1
            try:
                response = await operation.handler(call)
                await response(scope, receive, send)
            finally:
                space.users -= 1


def _may(token: Token, right: str, path: dict[str, str]) -> bool:
    """Whether the token has this right. Raise `InvalidOption` for a name that is too long or malformed."""
    namespace = check_namespace(path["namespace"])
    if "tube" in path:
        return token.may(right, namespace, check_tube_name(path["tube"]))
    return token.may_somewhere(right, namespace)


def routes_of(service: Service, operations: Iterable[Operation]) -> list[BaseRoute]:
    """A route for each path."""
    by_path: dict[str, dict[str, Operation]] = {}
    for each in operations:
        by_path.setdefault(each.path, {})[each.method] = each
    routes: list[BaseRoute] = []
    for path, methods in by_path.items():
        routes.append(Route(path.replace("}", ":name}"), _Endpoint(service, methods), name=path))
    return routes


def _typed(text: str, schema: Schema) -> Any:
    """The value of a part of a URL; its text if it does not have the type of the schema."""
    if schema["type"] != "string":
        with suppress(ValueError):
            return from_json(text.encode())
    return text
