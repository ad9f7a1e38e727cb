"""The routes of later. Errors have empty bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from yarl import URL

from tubes.drivers.moves import State
from tubes.errors import InvalidOption, TaskNotFound
from tubes.serve.access import REPLY_TO_ERROR
from tubes.serve.bodies import from_json, json_reply, read_body
from tubes.serve.later.callbacks import TUBE, Delivery, in_lower_case
from tubes.serve.namespaces import NONE, in_time
from tubes.serve.problems import status_of
from tubes.serve.service import Service
from tubes.serve.tokens import Token

#: What a member of a body is where it is missing or null.
_ZERO: Final[dict[type, Any]] = {str: "", int: 0}
_MOST: Final = 2**63
_Operation: TypeAlias = Callable[[dict[str, Any], Token], Awaitable[Response]]


def routes(service: Service, delivery: Delivery) -> list[BaseRoute]:
    """The routes of later, whose tasks `delivery` posts."""

    async def create(body: dict[str, Any], token: Token) -> Response:
        delay, retry = _member(body, "delay", int), _member(body, "retry", int)
        callback: str = _member(body, "callback", str)
        topic, content = _member(body, "topic", str), _member(body, "content", str)
        lane = _host(delivery.sender.places.check(callback))
        data = {"topic": topic, "content": content, "callback": callback, "retry": max(retry, 0), "delay": delay}
        options = await service.check_put(token, len(content.encode(errors="surrogatepass")))
        task = await delivery.on(lambda tube: tube.put(data, utube=lane, delay=max(delay, 0), timeout=None, **options))
        return json_reply({"id": str(delivery.ids.given(task.id))})

    def id_of(body: dict[str, Any]) -> int | None:
        text: str = _member(body, "id", str)
        if not text:
            raise InvalidOption(option="id", value=text, rule="must not be empty")
        return delivery.ids.read(text)

    async def delete(body: dict[str, Any], _: Token) -> Response:
        id = id_of(body)
        if id is not None:
            with suppress(TaskNotFound):
                await delivery.on(lambda tube: tube.delete(id))
        return Response(None, 200)

    async def query(body: dict[str, Any], _: Token) -> Response:
        id = id_of(body)
        if id is None:
            raise TaskNotFound(id=body["id"], tube=TUBE)
        task = await delivery.on(lambda tube: tube.peek(id))
        if task.state in (State.BURIED, State.DONE):  # later deletes what has failed for the last time.
            raise TaskNotFound(id=id, tube=TUBE)
        data: dict[str, Any] = task.data
        created = int(task.created)
        failed = task.attempts - (task.state is State.TAKEN)
        return json_reply(
            {
                "id": str(delivery.ids.given(task.id)),
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
    """One path, as an application. `right`: what a token must allow in the tube."""

    def __init__(self, service: Service, right: str, act: _Operation) -> None:
        self._service: Final = service
        self._right: Final = right
        self._act: Final = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        scope[REPLY_TO_ERROR] = _empty
        if scope["method"] != "POST":
            raise HTTPException(400)
        token = self._service.who(scope)
        if not token.may(self._right, NONE, TUBE):
            raise HTTPException(403)
        with self._service.inside(token):
            await self._service.count(token, self._right)
            body = _object(await read_body(scope, receive, self._service.longest_body(token)))
            response = await in_time(self._service.namespaces.root, self._act(body, token))
        await response(scope, receive, send)


def _empty(error: BaseException, path: str) -> Response:
    """An error as later tells it: by its status alone."""
    status = status_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return Response(None, status if status < 500 else 500, headers)


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object in a body. As in Go, null is an empty one."""
    try:
        found = from_json(text)
    except ValueError:
        raise HTTPException(400) from None
    if not isinstance(found, dict | None):
        raise HTTPException(400)
    return in_lower_case(cast("dict[str, Any]", found or {}))


def _member(body: dict[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is None:
        return _ZERO[kind]
    if type(value) is not kind or (isinstance(value, int) and not -_MOST <= value < _MOST):
        raise InvalidOption(option=name, value=value, rule=f"must be of type {kind.__name__}")
    return value


def _host(url: URL) -> str:
    """The lane of a callback."""
    return f"{url.host}:{url.port}"
