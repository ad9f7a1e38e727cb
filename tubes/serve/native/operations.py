"""Operations: a method on a path, with its handler, its required right, and the schemas of its requests and replies."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tubes.drivers.driver import check_namespace, check_tube_name
from tubes.errors import Facts, InvalidOption, cut
from tubes.serve import audit
from tubes.serve.bodies import from_json, json_reply, parse_object, read_body
from tubes.serve.namespaces import NO_NAMESPACE, Namespace
from tubes.serve.native import schemas
from tubes.serve.native.schemas import Fields, Schema
from tubes.serve.service import BaseCall, Service
from tubes.serve.tokens import Token

#: It returns a reply, its body as JSON (bytes) or as an object, or None for a reply without a body.
Handler: TypeAlias = "Callable[[Call], Awaitable[object]]"
#: A W3C `traceparent` header.
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,64}")
#: The common prefix of the paths of all operations.
ROOT: Final = "/v1/{namespace}"
#: The schemas of path parameters.
PATH: Final[Fields] = {
    "namespace": {**schemas.NAMESPACE, "description": "A namespace; `_`: tubes without a namespace."},
    "tube": {**schemas.TUBE, "description": "The name of a tube, with / written as %2F."},
    "id": schemas.INTEGER,
    "lease": schemas.LEASE,
    "lane": schemas.NONEMPTY,
    "session": {"type": "string", "minLength": 32},
}


class Call(BaseCall):
    """A request for one operation."""

    __slots__ = ("_parameters", "count", "members", "operation")

    def __init__(
        self, service: Service, operation: Operation, token: Token, space: Namespace, scope: Scope, receive: Receive
    ) -> None:
        super().__init__(service, token, space, scope, receive)
        self.operation: Final = operation
        #: The number of tasks that the request has changed, if known, for the audit.
        self.count: int | None = None
        #: The members of the body, and the parameters of the query, for the audit.
        self.members: Facts = {}
        self._parameters: Facts = {}

    @property
    def tube(self) -> str:
        return self.path["tube"]

    @property
    def task(self) -> int:
        return int(schemas.check(PATH["id"], "id", _parse_value(self.path["id"], PATH["id"])))

    def may(self, right: str, tube: str) -> bool:
        """True if the token has this right on the tube."""
        return self.token.may(right, self.space.name, tube)

    def check(self, right: str, tube: str) -> None:
        """Raise `HTTPException(403)` unless the token has this right on the tube."""
        if not self.may(right, check_tube_name(tube)):
            raise self.service.refusal([right], f"tube {tube!r} of {self.space.name!r}")

    def url(self, *segments: object) -> str:
        """Return the URL path of a resource in this namespace."""
        parts = ("v1", self.space.name, *map(str, segments))
        root: str = self.scope.get("root_path", "")
        return root + "".join("/" + quote(part, safe="") for part in parts)

    def query(self) -> Facts:
        """Return the parameters of the query, each converted to the type of its schema."""
        text: bytes = self.scope["query_string"]
        if not text and not self.operation.rules.get("required"):
            return {}
        parameters: dict[str, object] = {}
        for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
            if name in parameters:
                raise InvalidOption(option=name, value=value, rule="must be given only once")
            parameters[name] = _parse_value(value, self.operation.query.get(name, schemas.TEXT))
        schemas.check(schemas.request_schema(self.operation.query, **self.operation.rules), "query", parameters)
        self._parameters = {**parameters}
        return parameters

    @property
    def trace(self) -> dict[str, str]:
        """The trace headers of the request, for the context of a task."""
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in self.scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        return headers if _TRACE.fullmatch(headers.get("traceparent", "")) else {}

    async def raw(self) -> bytes:
        return await read_body(self.scope, self.receive, self.service.max_body(self.token))

    async def body(self) -> Facts:
        members = parse_object(await self.raw())
        schemas.check(self.operation.body, "body", members)
        self.members = {**members}
        return members

    async def changed(
        self, *, is_certain: bool = True, tube: str | None = None, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Record in the audit that this request has changed tubes, or tasks that its client does not hold.

        `is_certain`: see `audit.record`. `tube`, `arguments`: replace those of the request.
        """
        path = self.path
        await audit.record(
            self.service,
            self.space.name,
            self.token,
            self.operation.name,
            tube=tube or path.get("tube"),
            task=self.task if "id" in path else None,
            lane=cut(str, path["lane"]) if "lane" in path else None,
            arguments=audit.shorten(self._parameters | self.members if arguments is None else arguments),
            count=self.count,
            is_certain=is_certain,
        )


@dataclass(frozen=True, eq=False)
class Operation:
    """One method on one path, and the handler of its requests."""

    method: str
    path: str
    handler: Handler
    #: The right that it requires on the tube of the path. Without a tube in the path, the endpoint accepts the right on
    #: any tube of the namespace, and the handler checks each tube. `look|manage`: one of them; the handler checks and
    #: counts the right that the body requires, and calls `Call.changed` after a change.
    right: str
    body: Schema = field(default_factory=lambda: schemas.request_schema({}))
    query: Fields = field(default_factory=dict[str, Schema])
    #: Rules about combinations of query parameters.
    rules: Schema = field(default_factory=dict[str, object])
    #: Schemas of replies by status; None: no body.
    replies: Mapping[int, Schema | None] = field(default_factory=dict[int, "Schema | None"])
    #: True if the body is arbitrary bytes.
    takes_bytes: bool = False
    #: The media type of replies with a body.
    media_type: str = "application/json"

    @property
    def name(self) -> str:
        return self.handler.__name__


def operation(method: str, path: str, right: str, **fields: Any) -> Callable[[Handler], Operation]:
    """Make a handler an operation; `path` is relative to `/v1/{namespace}`, or else to `/v1` without a right."""
    return lambda handler: Operation(method, (ROOT if right else "/v1") + path, handler, right, **fields)


class Endpoint:
    """An application with the operations of one path."""

    def __init__(self, service: Service, operations: dict[str, Operation]) -> None:
        self._service: Final = service
        self._operations: Final = operations
        self._allow: Final = ", ".join(operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operations.get(scope["method"])
        if operation is None:
            raise HTTPException(405, f"this path allows only {self._allow}", {"allow": self._allow})
        path: dict[str, str] = scope["path_params"]
        token = self._service.authenticate(scope)
        rights = operation.right.split("|")
        if operation.right and not any(_is_allowed(token, right, path) for right in rights):
            place = f"tube {path['tube']!r} of {path['namespace']!r}" if "tube" in path else repr(path["namespace"])
            raise self._service.refusal(rights, place)
        if token.rates and len(rights) == 1:
            await self._service.count(token, operation.right)
        space = await self._service.namespaces.get(path.get("namespace", NO_NAMESPACE))
        call = Call(self._service, operation, token, space, scope, receive)
        if not operation.query:
            call.query()  # Refuse all query parameters.
        with self._service.admit(token), space.hold():
            async with audit.recorded(call.changed) if operation.right == "manage" else nullcontext():
                response = _make_reply(await operation.handler(call))
            await response(scope, receive, send)


def _make_reply(result: object) -> Response:
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(status_code=204)
    return Response(result, 200, None, "application/json") if isinstance(result, bytes) else json_reply(result)


def _is_allowed(token: Token, right: str, path: dict[str, str]) -> bool:
    """True if the token has this right. Raise `InvalidOption` for a name that is too long or malformed."""
    namespace = check_namespace(path["namespace"])
    if "tube" in path:
        return token.may(right, namespace, check_tube_name(path["tube"]))
    return token.may_somewhere(right, namespace)


def _parse_value(text: str, schema: Schema) -> object:
    """Decode a part of a URL. Return its text if the schema is a string or the text is not JSON."""
    if schema["type"] != "string":
        with suppress(ValueError):
            return from_json(text.encode())
    return text
