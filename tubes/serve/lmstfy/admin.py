"""lmstfy's API for administrators: tokens, their limits, and what queues there are."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from tubes.errors import InvalidOption
from tubes.serve.access import REPLY_TO_ERROR, is_of_a_page, noted
from tubes.serve.bodies import json_reply, object_of, read_body
from tubes.serve.lmstfy.calls import LONGEST_NAME, NAME, bad, error_reply, not_found
from tubes.serve.lmstfy.metrics import MEDIA_TYPE, POOL, Metrics
from tubes.serve.rates import Rate
from tubes.serve.service import Service
from tubes.serve.tokens import ANYBODY, Grant, Token, Tokens, id_of

Handler: TypeAlias = "Callable[[AdminCall], Awaitable[Response]]"
#: What a token may do that is created here.
_RIGHTS: Final = frozenset({"put", "take", "look", "manage"})
#: The rights that lmstfy's limits count, by the names that it has for them.
_LIMITS: Final = {"read": "take", "write": "put"}
#: One of these rights shows the names of tubes.
_LOOKING: Final = frozenset({"look", "admin"})
_WILD: Final = frozenset("*?[")
_SHORTEST: Final = 20
_BODY: Final = 2**16
#: The id of a token: no text of one is as short.
_ID: Final = re.compile(r"h?[0-9a-f]{12}")


class AdminCall:
    """A request of an administrator."""

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        self.service: Final = service
        self.scope: Final = scope
        self.receive: Final = receive
        self.path: Final[dict[str, str]] = scope["path_params"]
        #: The token of the request, after `check`.
        self.who: Token = ANYBODY
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        self.query: Final = dict(reversed(pairs))
        if self.query.get("pool", POOL) not in ("", POOL):
            raise bad("pool not found")

    @property
    def namespace(self) -> str:
        """The namespace in the path."""
        name = self.path["namespace"]
        if len(name) > LONGEST_NAME:
            raise bad("the namespace name was too long")
        if not NAME.fullmatch(name):
            raise bad("namespace name contains forbidden characters")
        return name

    @property
    def tokens(self) -> Tokens:
        """The tokens of the service."""
        if self.service.tokens is None:
            raise bad("the service has no tokens: start it with --tokens")
        return self.service.tokens

    @property
    def token(self) -> Token | None:
        """The token in the path, by its text or by its id, if the administrator may manage it."""
        return {token.id: token for token in self.managed()}.get(_id_in(self.path))

    @property
    def tubes(self) -> list[str]:
        """The patterns of the tubes in this namespace for which the request may manage tokens."""
        grants = (grant for grant in self.who.grants if "admin" in grant.rights)
        return list(dict.fromkeys(grant.tube for grant in grants if fnmatchcase(self.namespace, grant.namespace)))

    def managed(self) -> list[Token]:
        """The tokens of this namespace and no other one, without those that are good for more than these tubes."""
        return [token for token in self.tokens.all() if all(map(self._is_managed, token.grants))]

    def _is_managed(self, grant: Grant) -> bool:
        return grant.namespace == self.namespace and any(_covers(tube, grant.tube) for tube in self.tubes)

    async def body(self) -> bytes:
        """The body of the request."""
        return await read_body(self.scope, self.receive, _BODY)

    def check(self, right: str) -> None:
        """Raise `HTTPException` unless the token of the request has this right, "admin" or "look".

        "look": it may see some tubes. An administrator may do so, too. As long as no token has the right `admin`, any
        program of this machine is an administrator.
        """
        if is_of_a_page(self.scope):
            raise HTTPException(403, "no web page may do this")
        tokens = self.service.tokens
        known = [] if tokens is None else tokens.all()
        has_admin = any("admin" in grant.rights for token in known for grant in token.grants)
        if not has_admin and _is_loopback((self.scope.get("client") or ("",))[0]):
            return
        token = None if tokens is None else tokens.find(_shown(self.scope))
        if token is None and tokens is None and right == "look":
            return
        if token is None and not has_admin:
            raise HTTPException(403, "create a token with the right admin first")
        if token is None:
            raise HTTPException(401, f"this needs a token with the right {right}", {"www-authenticate": "Basic"})
        noted(self.scope)["token"] = token.id
        if right == "look":
            has_right = any(not grant.rights.isdisjoint(_LOOKING) for grant in token.grants)
            rule = "look or admin"
        elif "namespace" in self.path:
            has_right = token.may_somewhere("admin", self.path["namespace"])
            rule = f"admin in namespace {self.path['namespace']!r}"
        else:
            has_right = _is_of_all(token, {"admin"})
            rule = "admin for all tubes of all namespaces"
        if not has_right:
            raise HTTPException(403, f"the token must have the right {rule}")
        self.who = token


def _is_of_all(token: Token, rights: Iterable[str]) -> bool:
    """Whether a token has one of these rights for all tubes of all namespaces."""
    return any(
        (grant.namespace, grant.tube) == ("*", "*") and not grant.rights.isdisjoint(rights) for grant in token.grants
    )


def _covers(wide: str, narrow: str) -> bool:
    """Whether a pattern matches every name that another one matches. False if that is not certain."""
    return wide in ("*", narrow) or (_WILD.isdisjoint(narrow) and fnmatchcase(narrow, wide))


def _id_in(path: dict[str, str]) -> str:
    """The id of the token in a path, where its text or its id stands."""
    given = path["token"].removeprefix(f"{POOL}:")
    return given if _ID.fullmatch(given) else id_of(given)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(scope: Scope) -> str:
    """The token that is the password of a basic authentication, or a bearer's."""
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
    form = dict(reversed(parse_qsl((await call.body()).decode("latin-1"), keep_blank_values=True)))
    given = {**call.query, **form}
    if not given.get("description"):
        raise bad("invalid description")
    text = given.get("token") or None
    if text is not None and len(text) < _SHORTEST:
        raise bad("the user token was too short")
    pool, colon, rest = (text or "").partition(":")
    if colon:
        if pool != POOL:
            raise bad("pool not found")
        text = rest
    grants = [Grant(_RIGHTS, namespace, tube) for tube in call.tubes]
    _, created = call.tokens.create(grants, given["description"], text=text)
    return json_reply({"token": created}, 201)


async def _list(call: AdminCall) -> Response:
    """List the tokens of a namespace: the texts are not known any more, but the ids are."""
    return json_reply({"tokens": {token.id: token.description for token in call.managed()}})


async def _revoke(call: AdminCall) -> Response:
    """Revoke a token."""
    token = call.token
    if token is not None:
        call.tokens.revoke(token.id)
    return Response(status_code=204)


async def _show_limit(call: AdminCall) -> Response:
    """Show how often a token may be used."""
    token = call.token
    limit = None if token is None else _limit_of(token.rates)
    return json_reply(limit, 404 if limit is None else 200)


async def _add_limit(call: AdminCall) -> Response:
    """Limit how often a token may be used, unless that is done already."""
    return await _set_limit(call, 201)


async def _replace_limit(call: AdminCall) -> Response:
    """Limit how often a token may be used."""
    return await _set_limit(call, 200)


async def _set_limit(call: AdminCall, status: int) -> Response:
    limit = _read_limit(await call.body())
    if not limit["read"] and not limit["write"]:
        return json_reply({"limiter": limit}, 400)
    if not limit["interval"]:
        raise bad("interval should be > 0")
    token = call.token
    if token is None:
        raise HTTPException(404, "token not found")
    if status == 201 and _limit_of(token.rates) is not None:
        return json_reply({"error": "the token has a limiter already"}, 500)
    rates = {right: Rate.read(f"{limit[name]}/{limit['interval']}") for name, right in _LIMITS.items() if limit[name]}
    call.tokens.limit(token.id, {**_others(token), **rates})
    return json_reply({"limiter": limit}, status)


async def _remove_limit(call: AdminCall) -> Response:
    """Let a token be used as often as its holder likes."""
    token = call.token
    if token is not None:
        call.tokens.limit(token.id, _others(token))
    return json_reply({"msg": "success"})


def _others(token: Token) -> dict[str, Rate]:
    return {right: rate for right, rate in token.rates.items() if right not in _LIMITS.values()}


def _read_limit(body: bytes) -> dict[str, int]:
    found = object_of(body)
    limit: dict[str, int] = {}
    for name in ("read", "write", "interval"):
        value = found.get(name)
        if value is not None and (value.__class__ is not int or value < 0):
            raise InvalidOption(option=name, value=value, rule="must be a whole number from 0")
        limit[name] = value or 0
    return limit


def _limit_of(rates: Mapping[str, Rate]) -> dict[str, int] | None:
    """Rates of a token as lmstfy shows them: in the longer one of their intervals."""
    counted = {name: rates[right] for name, right in _LIMITS.items() if right in rates}
    if not counted:
        return None
    interval = max(rate.seconds for rate in counted.values())
    calls = {name: round(rate.count * interval / rate.seconds) for name, rate in counted.items()}
    return {"read": 0, "write": 0, **calls, "interval": round(interval)}


async def _list_limits(call: AdminCall) -> Response:
    """List the limits of all tokens."""
    found: list[dict[str, Any]] = []
    for token in [] if call.service.tokens is None else call.service.tokens.all():
        limit = _limit_of(token.rates)
        spaces = {grant.namespace for grant in token.grants}
        if limit is not None:
            found.append({"namespace": ",".join(sorted(spaces)), "token": token.id, "limiter": limit})
    return json_reply(found)


async def _info(call: AdminCall) -> Response:
    """List the queues that the token may see, by namespace."""
    seen = await call.service.namespaces.overview()
    shown = {
        space: sorted(tube for tube in tubes if any(call.who.may(right, space, tube) for right in _LOOKING))
        for space, tubes in seen.items()
    }
    return json_reply({space: tubes for space, tubes in shown.items() if tubes})


async def _pools(call: AdminCall) -> Response:
    """List the pools: there is one."""
    return json_reply([POOL])


async def _shows_log(call: AdminCall) -> Response:
    """Whether the access log is written."""
    return json_reply({"status": "enabled" if call.service.logs_requests else "disabled"})


async def _set_log(call: AdminCall) -> Response:
    """Write the access log of this process, or do not."""
    status = call.query.get("status")
    if status not in ("enable", "disable"):
        raise bad("invalid status")
    if call.service.logs_requests is None:
        raise bad("the service was started without an access log")
    call.service.logs_requests = status == "enable"
    return await _shows_log(call)


#: By path and method: the handler, and the right that it needs, if any.
_HANDLERS: Final[dict[str, dict[str, tuple[Handler, str | None]]]] = {
    "/token/{namespace:name}": {"GET": (_list, "admin"), "POST": (_create, "admin")},
    "/token/{namespace:name}/{token:name}": {"DELETE": (_revoke, "admin")},
    "/token/{namespace:name}/{token:name}/limit": {
        "GET": (_show_limit, "admin"),
        "POST": (_add_limit, "admin"),
        "PUT": (_replace_limit, "admin"),
        "DELETE": (_remove_limit, "admin"),
    },
    "/limits": {"GET": (_list_limits, "admin")},
    "/info": {"GET": (_info, "look")},
    "/pools": {"GET": (_pools, None)},
    "/accesslog": {"GET": (_shows_log, None), "POST": (_set_log, "admin")},
}


def routes(service: Service, metrics: Metrics, version: str) -> list[BaseRoute]:
    """The routes for administrators."""

    async def measured(call: AdminCall) -> Response:
        if not _is_of_all(call.who, _LOOKING):
            raise HTTPException(403, "the token must be good for all tubes: its grant must be look, without names")
        return Response(metrics.text(await call.service.namespaces.overview()), media_type=MEDIA_TYPE)

    async def about(call: AdminCall) -> Response:
        return json_reply({"version": version, "build_commit": "", "build_date": ""})

    handlers: dict[str, dict[str, tuple[Handler, str | None]]] = {
        **_HANDLERS,
        "/version": {"GET": (about, None)},
        "/metrics": {"GET": (measured, "look")},
    }
    return [Route(path, _Endpoint(service, methods)) for path, methods in handlers.items()]


class _Endpoint:
    """The handlers of one path by method, as an application."""

    def __init__(self, service: Service, handlers: dict[str, tuple[Handler, str | None]]) -> None:
        self._service: Final = service
        self._handlers: Final = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        scope[REPLY_TO_ERROR] = error_reply
        path: dict[str, str] = scope["path_params"]
        if "token" in path:  # It may be the text of a token.
            noted(scope)["path"] = f"/token/{quote(path['namespace'])}/{quote(_id_in(path))}"
        found = self._handlers.get(scope["method"])
        if found is None:
            raise not_found()
        handler, right = found
        call = AdminCall(self._service, scope, receive)
        if right is not None:
            call.check(right)
        response = await handler(call)
        await response(scope, receive, send)
