"""Find servers by URL, and connect to them through redis-py (TLS, passwords, Sentinel, Cluster).

`locate` turns a URL or a redis-py client into a `Server`. A `Server` makes connections and names the node that has a
key; it sends no commands. redis-py parses settings, authenticates and finds masters and nodes. It does not retry and
does not pool: the channels of this folder retry, and each keeps its own connection.
"""

from __future__ import annotations

import inspect
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Final, Protocol, TypeAlias
from urllib.parse import unquote, urlencode, urlsplit

import redis
import redis.cluster as redis_cluster
import redis.sentinel as redis_sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthorizationError, RedisClusterException
from redis.retry import Retry
from typing_extensions import override

from tubes.backend.url import ARGUMENTS, Place, read
from tubes.errors import ConnectionLost, InvalidOption, ServerRefused, TubesError

_log = logging.getLogger("tubes")
_sentinels: Final[Any] = redis_sentinel
_clusters: Final[Any] = redis_cluster
# Errors that a retry would only repeat.
_REFUSALS: Final = (redis.AuthenticationError, AuthorizationError, redis.ResponseError)

#: Timeouts in seconds: until a server accepts a connection, and until it replies.
CONNECT_TIMEOUT: Final = 5.0
REPLY_TIMEOUT: Final = 10.0
#: Timeout in seconds for reading the map of cluster nodes from one of them, and for finding out which ones reply.
_MAP_TIMEOUT: Final = 1.0
_FIRST_REPLY_TIMEOUT: Final = 0.05
#: Minimum seconds between two reads of the map of cluster nodes.
_REFRESH_INTERVAL: Final = 0.02

_AS_SCRIPT: Final = (
    "the Lua library runs as a script, which costs the server two to three times as much; if the server has functions, "
    "an administrator can load it by `tubes library --load`"
)

#: Keyword arguments of a redis-py connection.
_Settings: TypeAlias = dict[str, object]

#: Settings of redis-py that a URL may have, in addition to the TLS settings.
_FROM_URLS: Final = frozenset({
    "client_name", "db", "lib_name", "lib_version", "password", "socket_connect_timeout", "socket_keepalive",
    "socket_read_size", "username",
})  # fmt: skip
#: Settings that other programs may need in the same URL. They are accepted and have no effect here.
_IGNORED: Final = frozenset({
    "decode_responses", "encoding", "encoding_errors", "health_check_interval", "max_connections", "protocol",
    "retry_on_error", "retry_on_timeout", "socket_timeout", "timeout",
})  # fmt: skip

_SETTINGS: Final[_Settings] = {
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "socket_timeout": REPLY_TIMEOUT,
    "protocol": 2,
    "decode_responses": False,
    "health_check_interval": 0,
}


class ServerConnection(Protocol):
    """The part of redis-py's connections that this package uses."""

    _sock: socket.socket
    _parser: Any

    def connect(self) -> None: ...
    def disconnect(self) -> object: ...
    def send_command(self, *words: str | bytes) -> None: ...
    def can_read(self, timeout: float, /) -> bool: ...
    def read_response(self, *, disable_decoding: bool) -> Any: ...


class _Pool(Protocol):
    connection_kwargs: _Settings
    connection_class: type[Any]


class _Node(Protocol):
    name: str


class _NodesManager(Protocol):
    startup_nodes: dict[str, _Node]

    def initialize(self) -> None: ...


class _Client(Protocol):
    connection_pool: _Pool


class _ClusterClient(Protocol):
    nodes_manager: _NodesManager

    def get_node_from_key(self, key: str, /) -> _Node: ...
    def get_primaries(self) -> list[_Node]: ...
    def get_redis_connection(self, node: _Node, /) -> _Client: ...
    def get_connection_kwargs(self) -> _Settings: ...


class Server(Protocol):
    """One server, or the nodes of a cluster."""

    url: str
    #: True if connections are encrypted.
    secure: bool
    #: True if keys may move to another node while they are in use.
    moving: bool
    #: True unless the library has to run as a script; `why_scripts` is the reason.
    has_functions: bool
    why_scripts: str
    #: The nodes of a cluster that do not reply, with the time of the next PING (see `NodeHealth`).
    dead: dict[str, float]

    def use_scripts(self, why: str, /) -> None:
        """Run the library as a script from now on."""
        ...

    def connect(self, key: str, patience: float | None = None) -> ServerConnection:
        """Connect to the server that has `key`; `patience`: the timeout in seconds, if not the usual one."""
        ...

    def connect_all(self, patience: float) -> list[ServerConnection]:
        """Connect to all servers that have keys."""
        ...

    def rediscover(self) -> None:
        """Find the servers again: a server replied that it does not have a key, or was lost."""
        ...

    def node(self, key: str, patience: float | None = None) -> str:
        """Return the name of the server that has `key`. Keys of one server share a connection."""
        ...


class _Library:
    """How a server runs the library: as functions, unless it refuses."""

    url: str
    has_functions = True
    why_scripts = ""
    #: The URLs of servers for which the process has logged the reason.
    _logged: ClassVar[set[str]] = set()

    def use_scripts(self, why: str) -> None:
        self.has_functions, self.why_scripts = False, why.partition(", with args")[0]
        if self.url not in self._logged:
            self._logged.add(self.url)
            _log.warning("%s: %s: %s", self.url, _AS_SCRIPT, self.why_scripts)


class _PoolServer(_Library):
    """A server that a connection pool of redis-py can reach: one server, or the master that Sentinel names."""

    moving = False

    def __init__(self, url: str, pool: _Pool, client: object = None) -> None:
        self.url = url
        self.dead: dict[str, float] = {}
        self._pool: Final = pool
        # A reference that keeps the client alive as long as the store: a new client could get the same `id()`.
        self._client: Final = client
        self.secure = _is_secure(pool)

    def connect(self, key: str, patience: float | None = None) -> ServerConnection:
        return _open(self._pool, self.url, patience)

    def connect_all(self, patience: float) -> list[ServerConnection]:
        return [self.connect("", patience)]

    def rediscover(self) -> None: ...

    def node(self, key: str, patience: float | None = None) -> str:
        return ""


class _ClusterServer(_Library):
    """The nodes of a Redis Cluster."""

    moving = True

    def __init__(
        self, url: str, make: Callable[[float | None], _ClusterClient], *, secure: bool, secrets: Collection[str]
    ) -> None:
        self.url = url
        self.secure = secure
        self.dead: dict[str, float] = {}
        # Passwords, which no error may quote.
        self._secrets: Final = secrets
        self._make: Final = make
        self._client: _ClusterClient | None = None
        self._refreshed_at = 0.0

    def _find(self, key: str, patience: float | None = None) -> tuple[_ClusterClient, _Node]:
        """Return a client of the cluster, and the node that has the key according to its map."""
        try:
            client = self._client
            if client is None:
                client = self._client = self._make(patience)
            return client, client.get_node_from_key(key)
        except (redis.RedisError, RedisClusterException, OSError) as error:
            why = error
        raise _make_error(ConnectionLost, self.url, why, self._secrets)

    def connect(self, key: str, patience: float | None = None) -> ServerConnection:
        client, node = self._find(key, patience)
        return _open(client.get_redis_connection(node).connection_pool, self.url, patience)

    def connect_all(self, patience: float) -> list[ServerConnection]:
        client, _ = self._find("", patience)
        pools = [client.get_redis_connection(node).connection_pool for node in client.get_primaries()]
        return [_open(pool, self.url, patience) for pool in pools]

    def rediscover(self) -> None:
        client = self._client
        # Many calls get an error because of one move.
        if client is None or time.monotonic() - self._refreshed_at < _REFRESH_INTERVAL:
            return
        self._refreshed_at = time.monotonic()
        known = client.nodes_manager.startup_nodes
        # A dead node would delay the others: leave it out unless all are dead.
        dead = {name: node for name, node in known.copy().items() if name in self.dead}
        for name in dead if len(dead) < len(known) else ():
            known.pop(name, None)
        try:
            client.nodes_manager.initialize()
        except (redis.RedisError, RedisClusterException, OSError):
            with suppress(redis.RedisError, RedisClusterException, OSError):
                self._client = self._make(None)  # The names in the URL may have new addresses.
        known.update(dead)

    def node(self, key: str, patience: float | None = None) -> str:
        name: str = self._find(key, patience)[1].name
        return name


def _open(pool: _Pool, url: str, patience: float | None) -> ServerConnection:
    """Connect with the pool's class and settings and with ours, without taking a connection from the pool.

    A pool counts all connections that it ever made and allows 100 of them by default. Ours are made and closed often.
    """
    settings = {**_strip_maintenance(pool.connection_kwargs), **_settings()}
    connect_timeout: Any = pool.connection_kwargs.get("socket_connect_timeout")
    if connect_timeout is not None:
        settings["socket_connect_timeout"] = connect_timeout
    settings = _add_library(settings)
    if patience is not None:
        limit = patience if connect_timeout is None else min(patience, connect_timeout)
        settings |= {"socket_connect_timeout": limit, "socket_timeout": patience}
    kind: type[TubesError]
    why: Exception
    try:
        connection: ServerConnection = pool.connection_class(**settings)
        connection.connect()
        return connection
    except _REFUSALS as error:
        kind, why = ServerRefused, error
    except (redis.RedisError, OSError) as error:
        kind, why = ConnectionLost, error
    except (TypeError, ValueError) as error:  # A signal handler may raise others, which are not about the settings.
        kind, why = InvalidOption, error
    raise _make_error(kind, url, why, _secrets(pool.connection_kwargs))


def _secrets(settings: Mapping[str, object]) -> list[str]:
    """Return the passwords in these settings. No error may quote them."""
    secrets: list[str] = []
    for name, value in settings.items():
        if "password" in name and value:
            secrets.append(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return secrets


def _make_error(kind: type[TubesError], url: str, why: BaseException, secrets: Collection[str]) -> TubesError:
    """Make our error from one of redis-py; leave its text out if it quotes a password.

    A server quotes the arguments of an unknown command, and AUTH may be unknown to it.
    """
    quotes = re.compile("|".join(["args beginning with", *(rf"(?<!\w){re.escape(word)}(?!\w)" for word in secrets)]))
    hint = " The server may require another client certificate (ssl_certfile)." if "EOF occurred" in str(why) else ""
    chain: list[BaseException] = [why]
    for one in chain:
        chain += [other for other in (one.__cause__, one.__context__) if other is not None and other not in chain]
    clean = not any(quotes.search(str(one)) for one in chain)
    text = f"{why}{hint}" if clean else f"{type(why).__name__}; its text is left out because it quotes a password"
    if kind is InvalidOption:
        made: TubesError = kind(option="url", value=url, rule=f"has a setting that redis-py refuses: {text}")
    else:
        made = kind(url=url, why=text)
    made.__cause__ = why if clean else None
    return made


def _strip_maintenance(settings: _Settings) -> _Settings:
    """Remove the settings for maintenance notifications, which need RESP 3 and connections of the pool."""
    return {name: value for name, value in settings.items() if not name.startswith(("maint_notifications", "orig_"))}


def _add_library(settings: _Settings) -> _Settings:
    """Add redis-py's name and version, which it sends to servers, unless the settings name another library."""
    known = settings.keys() & {"driver_info", "lib_name", "lib_version"}
    return settings if known else {**settings, **_library_settings()}


@cache
def _library_settings() -> _Settings:
    """Return redis-py's name and version. Cached: redis-py 7.2 and later read them from disk on each call."""
    drivers = getattr(redis, "driver_info", None)
    return {} if drivers is None else {"driver_info": drivers.DriverInfo()}


def _untyped(thing: Any) -> Any:
    """Drop the type: the annotations of redis-py do not pass strict checks."""
    return thing


def _is_secure(pool: _Pool) -> bool:
    return issubclass(pool.connection_class, redis.SSLConnection) or bool(pool.connection_kwargs.get("ssl"))


def _settings() -> _Settings:
    # The channels decide which calls are sent again, and how often.
    return {**_SETTINGS, "retry": Retry(NoBackoff(), 0)}


def locate(place: object) -> tuple[Server, str]:
    """Return the server of a URL or of a redis-py client, and the prefix of its keys."""
    if isinstance(place, redis.RedisCluster):
        known: _Settings = _untyped(place).get_connection_kwargs()
        secure = bool(known.get("ssl"))
        return _ClusterServer("redis+cluster://", lambda _: _untyped(place), secure=secure, secrets=_secrets(known)), ""
    if isinstance(place, redis.Redis):
        pool: _Pool = _untyped(place).connection_pool
        if "@" in str(pool.connection_kwargs.get("host", "")):
            raise InvalidOption(option="url", value=type(place), rule="must have a host name without @")
        return _PoolServer(_url_of(pool), pool, place), ""
    if not isinstance(place, str):
        rule = "must be a string, a queue, or a redis.Redis or redis.RedisCluster"
        raise InvalidOption(option="url", value=type(place), rule=rule)
    parts = read(place)
    check_settings(parts)
    prefix = parts.settings.pop("prefix", [""])[-1]
    base_url = parts.scheme + place[len(parts.scheme) :].partition("?")[0]
    if parts.scheme == "redis+cluster":
        nodes = _hosts(parts, 6379)
        login = {**_query_settings(parts), **_login(base_url)}
        login.pop("db", None)  # A cluster has only one database.
        return _ClusterServer(
            parts.redacted, lambda patience: _cluster(nodes, login, patience), secure=False, secrets=_secrets(login)
        ), prefix
    if parts.scheme == "redis+sentinel":
        return _PoolServer(parts.redacted, _sentinel(base_url, parts)), prefix
    return _PoolServer(parts.redacted, _pool(base_url, parts)), prefix


def check_settings(parts: Place) -> None:
    """Raise `InvalidOption` if the URL has an unknown setting."""
    tls = _tls_settings() if parts.scheme == "rediss" else ()
    parts.check_settings({*ARGUMENTS, "namespace", "prefix", *_FROM_URLS, *tls}, _IGNORED)


def _pool(url: str, parts: Place) -> _Pool:
    """Make a pool from a URL without its query, and from the remaining settings of `parts`."""
    query = urlencode(parts.settings, doseq=True)
    try:
        made: _Pool = _untyped(redis.ConnectionPool).from_url(f"{url}?{query}" if query else url)
        # Check the settings that redis-py reads only when it makes a connection.
        _untyped(made.connection_class)(**_add_library(made.connection_kwargs))
    except Exception as error:
        bad = re.fullmatch(r"Invalid value for .(\w+). in connection URL\.", str(error))
    else:
        _check_files(made.connection_kwargs, parts)
        return made
    # Raised outside of `except`: redis-py's error may quote the value, and would be the context of this one.
    which = f"setting {bad[1]!r}, whose value redis-py cannot read" if bad else "setting that redis-py cannot use"
    raise InvalidOption(option="url", value=parts.redacted, rule=f"has a {which}")


def _check_files(settings: Mapping[str, Any], parts: Place) -> None:
    """Raise `InvalidOption` if files of TLS cannot be used. redis-py would try them again, or ask for a password."""
    context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "ssl_ca_certs"
    certificate, key, password = (settings.get(f"ssl_{name}") for name in ("certfile", "keyfile", "password"))
    try:
        if settings.get("ssl_ca_certs"):
            context.load_verify_locations(settings["ssl_ca_certs"])
        if certificate or key:
            names = "ssl_certfile, ssl_keyfile, ssl_password"
            context.load_cert_chain(certificate or "", key, password or "")
    except (OSError, ValueError) as error:
        rule = f"has TLS settings that cannot be used ({names}): {error}"
        raise InvalidOption(option="url", value=parts.redacted, rule=rule) from None


def _query_settings(parts: Place) -> _Settings:
    """Return the settings of a URL, parsed by redis-py although it does not know the scheme."""
    read = _pool("redis://", parts).connection_kwargs
    return {name: read[name] for name in parts.settings if name in _FROM_URLS}


@cache
def _tls_settings() -> frozenset[str]:
    """Return the names of redis-py's TLS settings."""
    taken: Mapping[str, object] = inspect.signature(_untyped(redis.SSLConnection).__init__).parameters
    return frozenset(name for name in taken if name.startswith("ssl_"))


def _url_of(pool: _Pool) -> str:
    known = pool.connection_kwargs
    if "path" in known:
        return f"unix://{known['path']}"
    return f"redis://{known.get('host', 'sentinel')}:{known.get('port', 6379)}/{known.get('db', 0)}"


def _hosts(parts: Place, port: int) -> list[tuple[str, int]]:
    """Return the hosts and ports of `host:port,host:port`; `port`: the default."""
    if not parts.hosts or not all(host for host, _ in parts.hosts):
        raise InvalidOption(option="url", value=parts.redacted, rule="must name a host")
    return [(host.strip("[]"), its or port) for host, its in parts.hosts]


def _login(url: str) -> _Settings:
    login = urlsplit(url).netloc.rpartition("@")[0]
    user, _, password = login.partition(":")
    return {name: unquote(value) for name, value in (("username", user), ("password", password)) if value}


class _Sentinel(redis.Redis):
    """A Sentinel whose repr is short: redis-py's error for a missing master quotes the repr of each silent Sentinel."""

    @override
    def __repr__(self) -> str:
        settings: _Settings = _untyped(self).connection_pool.connection_kwargs
        return f"Sentinel {settings['host']}:{settings['port']} did not reply"


def _sentinel(url: str, parts: Place) -> _Pool:
    """Make a pool from `redis+sentinel://[user:password@]host:port,…/service[/db]`."""
    _, service, *db = parts.path.split("/")
    from_query = _query_settings(parts)
    settings = {"db": 0, **_settings(), **from_query, **_login(url)}
    if db and db[0]:
        settings["db"] = int(db[0])
    sentinel_settings: Any = {**_settings(), "socket_timeout": CONNECT_TIMEOUT}
    if "socket_connect_timeout" in from_query:
        sentinel_settings["socket_connect_timeout"] = from_query["socket_connect_timeout"]
    manager = _sentinels.Sentinel([], sentinel_kwargs=sentinel_settings)
    manager.sentinels = [_Sentinel(host=host, port=port, **sentinel_settings) for host, port in _hosts(parts, 26379)]
    pool: _Pool = manager.master_for(service, **settings).connection_pool
    return pool


def _replies(host: str, port: int) -> bool:
    """Return True if a node replies at once, even if it refuses a command without a password."""
    try:
        with socket.create_connection((host, port), _FIRST_REPLY_TIMEOUT) as sock:
            sock.sendall(b"PING\r\n")
            return bool(sock.recv(1))
    except OSError:
        return False


def _cluster(hosts: list[tuple[str, int]], login: _Settings, patience: float | None) -> _ClusterClient:
    """Make a client from the nodes of `redis+cluster://[user:password@]host:port,…`."""
    living = [host for host in hosts if len(hosts) > 1 and _replies(*host)] or hosts
    nodes = [_clusters.ClusterNode(host, port) for host, port in living]
    # redis-py sends COMMAND to one node, and after an error to another one.
    limits: _Settings = {"socket_timeout": min(patience or _MAP_TIMEOUT, _MAP_TIMEOUT), "retry": Retry(NoBackoff(), 2)}
    made: _ClusterClient = _clusters.RedisCluster(startup_nodes=nodes, **{**_settings(), **login, **limits})
    return made
