"""lmstfy's API for administrators: tokens, their limits, and the list of queues."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tubes.errors import Facts, InvalidOption
from tubes.serve.access import REPLY_TO_ERROR, is_from_browser, notes_of
from tubes.serve.audit import record
from tubes.serve.bodies import json_reply, parse_object, read_body
from tubes.serve.lmstfy.calls import MAX_NAME, NAME, bad_request, error_reply, name_of, not_found, parse_query
from tubes.serve.lmstfy.metrics import POOL
from tubes.serve.lmstfy.metrics import Metrics as LmstfyMetrics
from tubes.serve.metrics import MEDIA_TYPE, Metrics
from tubes.serve.rates import Rate
from tubes.serve.service import Service
from tubes.serve.tokens import ANONYMOUS, TUBE_RIGHTS, Grant, Token, Tokens, id_of

Handler: TypeAlias = "Callable[[AdminCall], Awaitable[Response]]"
#: The rights that lmstfy's limits count, by lmstfy's names for them.
_LIMITS: Final = {"read": "take", "write": "put"}
#: Either of these rights shows the names of tubes.
_VIEW_RIGHTS: Final = frozenset({"look", "admin"})
_WILDCARDS: Final = frozenset("*?[")
_MIN_TOKEN: Final = 20
_MAX_BODY: Final = 2**16
#: The id of a token. The text of a token is always longer.
_TOKEN_ID: Final = re.compile(r"h?[0-9a-f]{12}")


class AdminCall:
    """A request of an administrator."""

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        self.service: Final = service
        self.scope: Final = scope
        self.receive: Final = receive
        self.path: Final[dict[str, str]] = scope["path_params"]
        #: The token of the request, after `check`.
        self.caller: Token = ANONYMOUS
        #: The arguments of a change, for the audit.
        self.arguments: Facts = {"token": _id_in(self.path)} if "token" in self.path else {}
        self.query: Final = parse_query(scope["query_string"])
        if self.query.get("pool", POOL) not in ("", POOL):
            raise bad_request("pool not found")

    @property
    def namespace(self) -> str:
        name = self.path["namespace"]
        if len(name) > MAX_NAME:
            raise bad_request("the namespace name was too long")
        if not NAME.fullmatch(name):
            raise bad_request("namespace name contains forbidden characters")
        return name

    @property
    def tokens(self) -> Tokens:
        if self.service.tokens is None:
            raise bad_request("the service has no tokens: start it with --tokens")
        return self.service.tokens

    @property
    def token(self) -> Token | None:
        """The token in the path, by its text or by its id, if the administrator may manage it."""
        return {token.id: token for token in self.managed()}.get(_id_in(self.path))

    @property
    def tubes(self) -> list[str]:
        """The patterns of the tubes in this namespace for which the request may manage tokens."""
        grants = (grant for grant in self.caller.grants if "admin" in grant.rights)
        return list(dict.fromkeys(grant.tube for grant in grants if fnmatchcase(self.namespace, grant.namespace)))

    def managed(self) -> list[Token]:
        """Return the tokens whose grants are all for this namespace and within the administrator's tubes."""
        return [token for token in self.tokens.all() if all(map(self._is_managed, token.grants))]

    def _is_managed(self, grant: Grant) -> bool:
        return grant.namespace == self.namespace and any(_pattern_covers(tube, grant.tube) for tube in self.tubes)

    async def body(self) -> bytes:
        return await read_body(self.scope, self.receive, _MAX_BODY)

    def check(self, right: str) -> None:
        """Raise `HTTPException` unless the token of the request has this right, "admin" or "look".

        "look": a right to see some tubes, or to manage tokens. As long as no token has the right `admin`, every
        program on this machine is an administrator.
        """
        if is_from_browser(self.scope):
            raise HTTPException(403, "requests from web pages are refused")
        tokens = self.service.tokens
        known = [] if tokens is None else tokens.all()
        has_admin = any("admin" in grant.rights for token in known for grant in token.grants)
        if not has_admin and _is_loopback((self.scope.get("client") or ("",))[0]):
            return
        token = None if tokens is None else tokens.find(_token_text(self.scope))
        if token is None and tokens is None and right == "look":
            return
        if token is None and not has_admin:
            raise HTTPException(403, "create a token with the right admin first")
        if token is None:
            raise HTTPException(401, f"this needs a token with the right {right}", {"www-authenticate": "Basic"})
        notes_of(self.scope)["token"] = token.id
        if right == "look":
            has_right = any(not grant.rights.isdisjoint(_VIEW_RIGHTS) for grant in token.grants)
            rule = "look or admin"
        elif "namespace" in self.path:
            has_right = token.may_somewhere("admin", self.path["namespace"])
            rule = f"admin in namespace {self.path['namespace']!r}"
        else:
            has_right = _has_right_everywhere(token, {"admin"})
            rule = "admin for all tubes of all namespaces"
        if not has_right:
            raise HTTPException(403, f"the token must have the right {rule}")
        self.caller = token


def _has_right_everywhere(token: Token, rights: Iterable[str]) -> bool:
    """True if a token has any of these rights for all tubes of all namespaces."""
    return any(
        (grant.namespace, grant.tube) == ("*", "*") and not grant.rights.isdisjoint(rights) for grant in token.grants
    )


def _pattern_covers(wide: str, narrow: str) -> bool:
    """True if `wide` certainly matches every name that `narrow` matches."""
    return wide in ("*", narrow) or (_WILDCARDS.isdisjoint(narrow) and fnmatchcase(narrow, wide))


def _id_in(path: dict[str, str]) -> str:
    """Return the id of the token in a path, which contains its text or its id."""
    text = path["token"].removeprefix(f"{POOL}:")
    return text if _TOKEN_ID.fullmatch(text) else id_of(text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token_text(scope: Scope) -> str:
    """Return the text of the token: the password of basic authentication, or a bearer token."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, text = value.partition(b" ")
            if kind.lower() == b"bearer":
                return str(text.strip().decode("latin-1"))
            if kind.lower() == b"basic":
                try:
                    return b64decode(text.strip(), validate=True).partition(b":")[2].decode()
                except ValueError:
                    return ""
    return ""


async def _create(call: AdminCall) -> Response:
    """Create a token of a namespace, for the tubes of the administrator."""
    namespace = call.namespace
    parameters = {**call.query, **parse_query(await call.body())}
    if not parameters.get("description"):
        raise bad_request("invalid description")
    text = parameters.get("token") or None
    if text is not None and len(text) < _MIN_TOKEN:
        raise bad_request("the user token was too short")
    pool, colon, suffix = (text or "").partition(":")
    if colon:
        if pool != POOL:
            raise bad_request("pool not found")
        text = suffix
    grants = [Grant(frozenset(TUBE_RIGHTS), namespace, tube) for tube in call.tubes]
    token, created = call.tokens.create(grants, parameters["description"], text=text)
    call.arguments = {"token": token.id, "description": token.description}
    return json_reply({"token": created}, 201)


async def _list(call: AdminCall) -> Response:
    """List the tokens of a namespace by id, since their texts are not stored."""
    return json_reply({"tokens": {token.id: token.description for token in call.managed()}})


async def _revoke(call: AdminCall) -> Response:
    token = call.token
    if token is not None:
        call.tokens.revoke(token.id)
    return Response(status_code=204)


async def _show_limit(call: AdminCall) -> Response:
    token = call.token
    limit = None if token is None else _limit_of(token.rates)
    return json_reply(limit, 404 if limit is None else 200)


async def _set_limit(call: AdminCall, status: int) -> Response:
    """Limit how often a token may be used. With `status` 201, refuse if the token already has a limit."""
    limit = _read_limit(await call.body())
    if not limit["read"] and not limit["write"]:
        return json_reply({"limiter": limit}, 400)
    if not limit["interval"]:
        raise bad_request("interval should be > 0")
    token = call.token
    if token is None:
        raise HTTPException(404, "token not found")
    if status == 201 and _limit_of(token.rates) is not None:
        return json_reply({"error": "the token has a limiter already"}, 500)
    rates = {right: Rate.read(f"{limit[name]}/{limit['interval']}") for name, right in _LIMITS.items() if limit[name]}
    call.tokens.set_rates(token.id, {**_other_rates(token), **rates})
    return json_reply({"limiter": limit}, status)


async def _remove_limit(call: AdminCall) -> Response:
    token = call.token
    if token is not None:
        call.tokens.set_rates(token.id, _other_rates(token))
    return json_reply({"msg": "success"})


def _other_rates(token: Token) -> dict[str, Rate]:
    return {right: rate for right, rate in token.rates.items() if right not in _LIMITS.values()}


def _read_limit(body: bytes) -> dict[str, int]:
    members = parse_object(body)
    limit: dict[str, int] = {}
    for name in ("read", "write", "interval"):
        value = members.get(name)
        if value is not None and (not isinstance(value, int) or value is True or value is False or value < 0):
            raise InvalidOption(option=name, value=value, rule="must be a whole number, at least 0")
        limit[name] = value or 0
    return limit


def _limit_of(rates: Mapping[str, Rate]) -> dict[str, int] | None:
    """Return the rates of a token in lmstfy's form: both per interval, the longer of their intervals."""
    limited = {name: rates[right] for name, right in _LIMITS.items() if right in rates}
    if not limited:
        return None
    interval = max(rate.seconds for rate in limited.values())
    calls = {name: round(rate.count * interval / rate.seconds) for name, rate in limited.items()}
    return {"read": 0, "write": 0, **calls, "interval": round(interval)}


async def _list_limits(call: AdminCall) -> Response:
    limits: list[Facts] = []
    for token in [] if call.service.tokens is None else call.service.tokens.all():
        limit = _limit_of(token.rates)
        spaces = {grant.namespace for grant in token.grants}
        if limit is not None:
            limits.append({"namespace": ",".join(sorted(spaces)), "token": token.id, "limiter": limit})
    return json_reply(limits)


async def _info(call: AdminCall) -> Response:
    """List the queues that the token may see, by namespace."""
    tubes_by_namespace = await call.service.namespaces.read_tubes()
    visible = {
        space: sorted(tube for tube in tubes if any(call.caller.may(right, space, tube) for right in _VIEW_RIGHTS))
        for space, tubes in tubes_by_namespace.items()
    }
    return json_reply({space: tubes for space, tubes in visible.items() if tubes})


async def _pools(call: AdminCall) -> Response:
    return json_reply([POOL])


async def _show_log(call: AdminCall) -> Response:
    return json_reply({"status": "enabled" if call.service.logs_requests else "disabled"})


async def _set_log(call: AdminCall) -> Response:
    """Switch the access log of this process on or off."""
    status = call.query.get("status")
    if status not in ("enable", "disable"):
        raise bad_request("invalid status")
    if call.service.logs_requests is None:
        raise bad_request("the service was started without an access log")
    call.service.logs_requests = status == "enable"
    return await _show_log(call)


#: By path and method: the handler, and the right that it requires, if any.
_HANDLERS: Final[dict[str, dict[str, tuple[Handler, str | None]]]] = {
    "/token/{namespace:name}": {"GET": (_list, "admin"), "POST": (_create, "admin")},
    "/token/{namespace:name}/{token:name}": {"DELETE": (_revoke, "admin")},
    "/token/{namespace:name}/{token:name}/limit": {
        "GET": (_show_limit, "admin"),
        "POST": (partial(_set_limit, status=201), "admin"),
        "PUT": (partial(_set_limit, status=200), "admin"),
        "DELETE": (_remove_limit, "admin"),
    },
    "/limits": {"GET": (_list_limits, "admin")},
    "/info": {"GET": (_info, "look")},
    "/pools": {"GET": (_pools, None)},
    "/accesslog": {"GET": (_show_log, None), "POST": (_set_log, "admin")},
}


def routes(service: Service, metrics: LmstfyMetrics, service_metrics: Metrics, version: str) -> list[BaseRoute]:
    async def show_metrics(call: AdminCall) -> Response:
        if not _has_right_everywhere(call.caller, _VIEW_RIGHTS):
            raise HTTPException(403, "the token must have a grant for all tubes of all namespaces: look without names")
        text = metrics.text(await call.service.namespaces.read_tubes())
        return Response(text + await service_metrics.text(ANONYMOUS), media_type=MEDIA_TYPE)

    async def show_version(call: AdminCall) -> Response:
        return json_reply({"version": version, "build_commit": "", "build_date": ""})

    handlers: dict[str, dict[str, tuple[Handler, str | None]]] = {
        **_HANDLERS,
        "/version": {"GET": (show_version, None)},
        "/metrics": {"GET": (show_metrics, "look")},
    }
    return [Route(path, _Endpoint(service, methods)) for path, methods in handlers.items()]


class _Endpoint:
    """The handlers of one path by method, as an application."""

    def __init__(self, service: Service, handlers: dict[str, tuple[Handler, str | None]]) -> None:
        self._service: Final = service
        self._handlers: Final = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REPLY_TO_ERROR] = error_reply
        path: dict[str, str] = scope["path_params"]
        if "token" in path:  # It may contain the text of a token.
            notes_of(scope)["path"] = f"/token/{quote(path['namespace'])}/{quote(_id_in(path))}"
        entry = self._handlers.get(scope["method"])
        if entry is None:
            raise not_found()
        handler, right = entry
        call = AdminCall(self._service, scope, receive)
        if right is not None:
            call.check(right)
        response = await handler(call)
        if "namespace" in path and scope["method"] != "GET" and response.status_code < 400:
            action = f"lmstfy.token{name_of(handler)}"
            await record(self._service, call.namespace, call.caller, action, arguments=call.arguments)
        await response(scope, receive, send)
