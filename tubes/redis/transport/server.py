"""Where the servers are: URLs, and connections that redis-py makes (TLS, passwords, Sentinel, Cluster)."""

from __future__ import annotations

import inspect
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final, Protocol, TypeAlias
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

_sentinels: Final[Any] = redis_sentinel
_clusters: Final[Any] = redis_cluster
# A second try fails in the same way.
_REFUSALS: Final = (redis.AuthenticationError, AuthorizationError, redis.ResponseError)

#: Seconds that a server may take to accept a connection, and to answer.
CONNECT_TIMEOUT: Final = 5.0
ANSWER_TIMEOUT: Final = 10.0
#: Seconds between two looks at which node has what.
_LOOK: Final = 0.02

#: What redis-py makes a connection by.
_Settings: TypeAlias = dict[str, object]

#: Settings of redis-py that a URL may have, besides those of TLS.
_FROM_URLS: Final = frozenset({
    "client_name", "db", "lib_name", "lib_version", "password", "socket_connect_timeout", "socket_keepalive",
    "socket_read_size", "username",
})  # fmt: skip
#: Those that other programs with the same URL may need, and that mean nothing here.
_OF_OTHERS: Final = frozenset({
    "decode_responses", "encoding", "encoding_errors", "health_check_interval", "max_connections", "protocol",
    "retry_on_error", "retry_on_timeout", "socket_timeout", "timeout",
})  # fmt: skip

_SETTINGS: Final[_Settings] = {
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "socket_timeout": ANSWER_TIMEOUT,
    "protocol": 2,
    "decode_responses": False,
    "health_check_interval": 0,
}


class Connection(Protocol):
    """What is used of redis-py's connections."""

    _sock: socket.socket
    _parser: Any

    def connect(self) -> None: ...
    def disconnect(self) -> object: ...
    def can_read(self, timeout: float, /) -> bool: ...
    def read_response(self, *, disable_decoding: bool) -> Any: ...


class _Pool(Protocol):
    connection_kwargs: _Settings
    connection_class: type[Any]


class _Node(Protocol):
    name: str


class _NodesManager(Protocol):
    def initialize(self) -> None: ...


class _Client(Protocol):
    connection_pool: _Pool


class _ClusterClient(Protocol):
    nodes_manager: _NodesManager

    def get_node_from_key(self, key: str, /) -> _Node: ...
    def get_redis_connection(self, node: _Node, /) -> _Client: ...
    def get_connection_kwargs(self) -> _Settings: ...


class Server(Protocol):
    """One server, or several that share the keys."""

    url: str
    #: Whether what goes over the wire is encrypted.
    secure: bool
    #: Whether keys may move to another server while they are used.
    moving: bool

    def connect(self, key: str, patience: float | None = None) -> Connection:
        """A new connection, connected, to the server that has this key; within so many seconds, if they are given."""
        ...

    def moved(self) -> None:
        """A server said that it does not have what it was asked for: look again who does."""
        ...

    def node(self, key: str) -> str:
        """Names the server that has this key: keys of one node share a connection."""
        ...


class _Pooled:
    """What redis-py's connection pool knows how to reach: one server, or the master that Sentinel names."""

    moving = False

    def __init__(self, url: str, pool: _Pool, client: object = None) -> None:
        self.url = url
        self._pool: Final = pool
        # Kept for as long as the store: another client with its id would be taken for it.
        self._client: Final = client
        self.secure = _is_secure(pool)

    def connect(self, key: str, patience: float | None = None) -> Connection:
        return _connected(self._pool, self.url, patience)

    def moved(self) -> None: ...

    def node(self, key: str) -> str:
        return ""


class _Cluster:
    """The nodes of a Redis Cluster."""

    moving = True

    def __init__(self, url: str, make: Callable[[], _ClusterClient], *, secure: bool, hidden: Collection[str]) -> None:
        self.url = url
        self.secure = secure
        # What no error may quote.
        self._hidden: Final = hidden
        self._make: Final = make
        self._client: _ClusterClient | None = None
        self._looked = 0.0

    def _find(self, key: str) -> tuple[_ClusterClient, _Node]:
        """A client of the cluster, and the node that has the key as far as that knows."""
        try:
            client = self._client
            if client is None:
                client = self._client = self._make()
            return client, client.get_node_from_key(key)
        except (redis.RedisError, RedisClusterException, OSError) as error:
            self._client = None
            why = error
        raise _about(ConnectionLost, self.url, why, self._hidden)

    def connect(self, key: str, patience: float | None = None) -> Connection:
        client, node = self._find(key)
        return _connected(client.get_redis_connection(node).connection_pool, self.url, patience)

    def moved(self) -> None:
        client = self._client
        # Many calls hear of one move.
        if client is None or time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        try:
            client.nodes_manager.initialize()
        except (redis.RedisError, RedisClusterException, OSError):
            self._client = None

    def node(self, key: str) -> str:
        name: str = self._find(key)[1].name
        return name


def _connected(pool: _Pool, url: str, patience: float | None) -> Connection:
    """A connection as the pool makes them, but with our settings, and not one of the pool's: it counts its own.

    Connections that are made here come and go; a pool allows so many, 100 by default, in its whole life.
    """
    settings = {**_plain(pool.connection_kwargs), **_settings()}
    given: Any = pool.connection_kwargs.get("socket_connect_timeout")
    if given is not None:
        settings["socket_connect_timeout"] = given
    settings = _with_library(settings)
    if patience is not None:
        limit = patience if given is None else min(patience, given)
        settings |= {"socket_connect_timeout": limit, "socket_timeout": patience}
    kind: type[TubesError]
    why: Exception
    try:
        connection: Connection = pool.connection_class(**settings)
        connection.connect()
        return connection
    except _REFUSALS as error:
        kind, why = ServerRefused, error
    except (redis.RedisError, OSError) as error:
        kind, why = ConnectionLost, error
    except Exception as error:
        kind, why = InvalidOption, error
    raise _about(kind, url, why, _hidden(pool.connection_kwargs))


def _hidden(settings: Mapping[str, object]) -> list[str]:
    """What no error may quote of these settings."""
    hidden: list[str] = []
    for name, value in settings.items():
        if "password" in name and value:
            hidden.append(value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return hidden


def _about(kind: type[TubesError], url: str, why: BaseException, hidden: Collection[str]) -> TubesError:
    """The error for what redis-py says; what quotes a password is left out.

    A server quotes the arguments of a command that it does not know, and it may know no AUTH.
    """
    quotes = re.compile("|".join(["args beginning with", *(rf"(?<!\w){re.escape(word)}(?!\w)" for word in hidden)]))
    chain: list[BaseException] = [why]
    for one in chain:
        chain += [other for other in (one.__cause__, one.__context__) if other is not None and other not in chain]
    clean = not any(quotes.search(str(one)) for one in chain)
    said = why if clean else f"{type(why).__name__}; its text is left out, for it has a part of the password"
    if kind is InvalidOption:
        made: TubesError = kind(option="url", value=url, rule=f"has a setting that redis-py refuses: {said}")
    else:
        made = kind(url=url, why=said)
    made.__cause__ = why if clean else None
    return made


def _plain(settings: _Settings) -> _Settings:
    """A pool's settings without what only its own connections have: notifications of maintenance, which need RESP 3."""
    return {name: value for name, value in settings.items() if not name.startswith(("maint_notifications", "orig_"))}


def _with_library(settings: _Settings) -> _Settings:
    """With what redis-py tells servers about itself, unless the settings say it."""
    known = settings.keys() & {"driver_info", "lib_name", "lib_version"}
    return settings if known else {**settings, **_library()}


@cache
def _library() -> _Settings:
    """What redis-py tells servers about itself: from 7.2 on it looks its version up on the disk for each connection."""
    drivers = getattr(redis, "driver_info", None)
    return {} if drivers is None else {"driver_info": drivers.DriverInfo()}


def _untyped(thing: Any) -> Any:
    """What redis-py says of its types is not enough for strict checks."""
    return thing


def _is_secure(pool: _Pool) -> bool:
    return issubclass(pool.connection_class, redis.SSLConnection) or bool(pool.connection_kwargs.get("ssl"))


def _settings() -> _Settings:
    # Whoever calls decides what may be tried again, and how often.
    return {**_SETTINGS, "retry": Retry(NoBackoff(), 0)}


def locate(place: object) -> tuple[Server, str]:
    """The server of a URL or of a redis-py client, and the prefix of its keys."""
    if isinstance(place, redis.RedisCluster):
        known: _Settings = _untyped(place).get_connection_kwargs()
        secure = bool(known.get("ssl"))
        return _Cluster("redis+cluster://", lambda: _untyped(place), secure=secure, hidden=_hidden(known)), ""
    if isinstance(place, redis.Redis):
        pool: _Pool = _untyped(place).connection_pool
        if "@" in str(pool.connection_kwargs.get("host", "")):
            raise InvalidOption(option="url", value=type(place), rule="must have a host name without @")
        return _Pooled(_name_of(pool), pool, place), ""
    if not isinstance(place, str):
        rule = "must be a string, a queue, or a redis.Redis or redis.RedisCluster"
        raise InvalidOption(option="url", value=type(place), rule=rule)
    parts = read(place)
    check_settings(parts)
    prefix = parts.settings.pop("prefix", [""])[-1]
    rest = parts.scheme + place[len(parts.scheme) :].partition("?")[0]
    if parts.scheme == "redis+cluster":
        nodes = _hosts(parts, 6379)
        login = {**_queried(parts), **_login(rest)}
        login.pop("db", None)  # A cluster has one.
        return _Cluster(parts.redacted, lambda: _cluster(nodes, login), secure=False, hidden=_hidden(login)), prefix
    if parts.scheme == "redis+sentinel":
        return _Pooled(parts.redacted, _sentinel(rest, parts)), prefix
    return _Pooled(parts.redacted, _pool(rest, parts)), prefix


def check_settings(parts: Place) -> None:
    """Raise `InvalidOption` if the URL has a setting that is unknown."""
    tls = _of_tls() if parts.scheme == "rediss" else ()
    parts.check_settings({*ARGUMENTS, "namespace", "prefix", *_FROM_URLS, *tls}, _OF_OTHERS)


def _pool(url: str, parts: Place) -> _Pool:
    """What redis-py makes of a URL without its settings, and of those."""
    query = urlencode(parts.settings, doseq=True)
    try:
        made: _Pool = _untyped(redis.ConnectionPool).from_url(f"{url}?{query}" if query else url)
        # Some settings are only looked at here.
        _untyped(made.connection_class)(**_with_library(made.connection_kwargs))
        return made
    except Exception as error:
        bad = re.fullmatch(r"Invalid value for .(\w+). in connection URL\.", str(error))
    # Not there: what redis-py has raised may quote the value, and would be seen as its context.
    which = f"setting {bad[1]!r}, whose value redis-py cannot read" if bad else "setting that redis-py cannot use"
    raise InvalidOption(option="url", value=parts.redacted, rule=f"has a {which}")


def _queried(parts: Place) -> _Settings:
    """The settings of a URL as redis-py reads them, where it knows no such URLs."""
    read = _pool("redis://", parts).connection_kwargs
    return {name: read[name] for name in parts.settings if name in _FROM_URLS}


@cache
def _of_tls() -> frozenset[str]:
    """The settings of redis-py's connections over TLS."""
    taken: Mapping[str, object] = inspect.signature(_untyped(redis.SSLConnection).__init__).parameters
    return frozenset(name for name in taken if name.startswith("ssl_"))


def _name_of(pool: _Pool) -> str:
    known = pool.connection_kwargs
    if "path" in known:
        return f"unix://{known['path']}"
    return f"redis://{known.get('host', 'sentinel')}:{known.get('port', 6379)}/{known.get('db', 0)}"


def _hosts(parts: Place, port: int) -> list[tuple[str, int]]:
    """Hosts and ports of `host:port,host:port`."""
    if not parts.hosts or not all(host for host, _ in parts.hosts):
        raise InvalidOption(option="url", value=parts.redacted, rule="must name a host")
    return [(host.strip("[]"), its or port) for host, its in parts.hosts]


def _login(url: str) -> _Settings:
    login = urlsplit(url).netloc.rpartition("@")[0]
    user, _, password = login.partition(":")
    return {name: unquote(value) for name, value in (("username", user), ("password", password)) if value}


class _Watcher(redis.Redis):
    """A Sentinel. redis-py's error, that there is no master, has the reprs of those that did not answer."""

    @override
    def __repr__(self) -> str:
        settings: _Settings = _untyped(self).connection_pool.connection_kwargs
        return f"Sentinel {settings['host']}:{settings['port']} did not reply"


def _sentinel(url: str, parts: Place) -> _Pool:
    """`redis+sentinel://[user:password@]host:port,…/service[/db]`."""
    _, service, *db = parts.path.split("/")
    queried = _queried(parts)
    settings = {"db": 0, **_settings(), **queried, **_login(url)}
    if db and db[0]:
        settings["db"] = int(db[0])
    watching: Any = {**_settings(), "socket_timeout": CONNECT_TIMEOUT}
    if "socket_connect_timeout" in queried:
        watching["socket_connect_timeout"] = queried["socket_connect_timeout"]
    watchers = _sentinels.Sentinel([], sentinel_kwargs=watching)
    watchers.sentinels = [_Watcher(host=host, port=port, **watching) for host, port in _hosts(parts, 26379)]
    pool: _Pool = watchers.master_for(service, **settings).connection_pool
    return pool


def _cluster(hosts: list[tuple[str, int]], login: _Settings) -> _ClusterClient:
    """`redis+cluster://[user:password@]host:port,…`."""
    nodes = [_clusters.ClusterNode(host, port) for host, port in hosts]
    made: _ClusterClient = _clusters.RedisCluster(startup_nodes=nodes, **{**_settings(), **login})
    return made
