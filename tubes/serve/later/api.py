"""The routes of later. Errors have empty bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tubes.drivers.moves import State
from tubes.errors import Facts, InvalidOption, TaskNotFound
from tubes.serve.access import REPLY_TO_ERROR
from tubes.serve.audit import record, shorten
from tubes.serve.bodies import json_reply, read_body
from tubes.serve.later.callbacks import TUBE, Delivery, read_object
from tubes.serve.namespaces import NO_NAMESPACE, limit_time
from tubes.serve.problems import status_of
from tubes.serve.service import Service
from tubes.serve.tokens import Token

#: The default of a missing or null member of a body, by type.
_ZERO: Final[dict[type, object]] = {str: "", int: 0}
_INT_LIMIT: Final = 2**63
_Operation: TypeAlias = Callable[[dict[str, object], Token], Awaitable[Response]]


def routes(service: Service, delivery: Delivery) -> list[BaseRoute]:
    """Return the routes of later. `delivery` posts the tasks."""

    async def create(body: dict[str, object], token: Token) -> Response:
        delay, retry = _member(body, "delay", int), _member(body, "retry", int)
        callback: str = _member(body, "callback", str)
        topic, content = _member(body, "topic", str), _member(body, "content", str)
        place = delivery.sender.places.check(callback)
        data = {"topic": topic, "content": content, "callback": callback, "retry": max(retry, 0), "delay": delay}
        options = await service.check_put(token, len(content.encode(errors="surrogatepass")))
        task: Any = await delivery.apply(
            lambda tube: tube.put(data, utube=f"{place.host}:{place.port}", delay=max(delay, 0), **options)
        )
        return json_reply({"id": str(delivery.ids.encode(task.id))})

    def id_of(body: dict[str, object]) -> int | None:
        text: str = _member(body, "id", str)
        if not text:
            raise InvalidOption(option="id", value=text, rule="must not be empty")
        return delivery.ids.read(text)

    async def delete(body: dict[str, object], _: Token) -> Response:
        id = id_of(body)
        if id is not None:
            with suppress(TaskNotFound):
                await delivery.apply(lambda tube: tube.delete(id))
        return Response(None, 200)

    async def query(body: dict[str, object], _: Token) -> Response:
        id = id_of(body)
        if id is None:
            raise TaskNotFound(id=body["id"], tube=TUBE)
        task = await delivery.apply(lambda tube: tube.peek(id))
        if task.state in (State.BURIED, State.DONE):  # later deletes a task after its last failure.
            raise TaskNotFound(id=id, tube=TUBE)
        data: Facts = task.data
        created = int(task.created)
        failed = task.attempts - (task.state is State.TAKEN)
        return json_reply(
            {
                "id": str(delivery.ids.encode(task.id)),
                "topic": data["topic"],
                "execute_time": created + data["delay"],
                "max_retry": data["retry"],
                "has_retry": min(failed, data["retry"]),
                "callback": data["callback"],
                "content": data["content"],
                "creat_time": created,
            }
        )

    operations = (("/create", "put", create), ("/delete", "manage", delete), ("/query", "look", query))
    return [Route(path, _Endpoint(service, right, act), name=path) for path, right, act in operations]


class _Endpoint:
    """An application for one path. `right`: the right that it requires in the tube."""

    def __init__(self, service: Service, right: str, act: _Operation) -> None:
        self._service: Final = service
        self._right: Final = right
        self._act: Final = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REPLY_TO_ERROR] = _empty_reply
        if scope["method"] != "POST":
            raise HTTPException(400)
        token = self._service.authenticate(scope)
        if not token.may(self._right, NO_NAMESPACE, TUBE):
            raise HTTPException(403)
        with self._service.admit(token):
            await self._service.count(token, self._right)
            text = await read_body(scope, receive, self._service.max_body(token))
            try:
                body = read_object(text)
            except ValueError:
                raise HTTPException(400) from None
            response = await limit_time(self._service.namespaces.root, self._act(body, token))
            if self._right == "manage":
                arguments = shorten({"id": body.get("id")})
                await record(self._service, NO_NAMESPACE, token, "later.delete", tube=TUBE, arguments=arguments)
        await response(scope, receive, send)


def _empty_reply(error: BaseException, path: str) -> Response:
    """Return later's reply to an error: a status without a body."""
    status = status_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return Response(None, status if status < 500 else 500, headers)


def _member(body: dict[str, object], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is None:
        return _ZERO[kind]
    if type(value) is not kind or (isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT):
        raise InvalidOption(option=name, value=value, rule=f"must be of type {kind.__name__}")
    # As in Go, replace lone surrogates.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value
