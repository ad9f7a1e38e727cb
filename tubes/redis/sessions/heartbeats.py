"""A thread that renews the leases of a process's sessions on one server, in all its namespaces."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from tubes.redis.transport.channel import ThreadChannel

if TYPE_CHECKING:
    from tubes.redis.transport.server import Server


class _Store(Protocol):
    """The part of a store that `SessionRenewer` uses."""

    def renew_sessions(self, channel: ThreadChannel, patience: float, lost: set[str], /) -> None: ...


class SessionRenewer:
    """Renew the sessions of some stores three times per session ttl, in a thread because event loops may be blocked."""

    def __init__(self, server: Server, lease: float, by_lease: dict[float, SessionRenewer] | None = None) -> None:
        self._server: Final = server
        self._lease: Final = lease
        # Shared by the renewers of all session ttls on this server.
        self._by_lease: Final = {} if by_lease is None else by_lease
        self._by_lease[lease] = self
        self._stores: Final[dict[_Store, None]] = {}
        self._lock: Final = threading.Lock()
        # Stops the thread; None without a thread.
        self._stop: threading.Event | None = None

    def with_ttl(self, lease: float) -> SessionRenewer:
        """Return the renewer of sessions of this ttl."""
        return self._by_lease.get(lease) or SessionRenewer(self._server, lease, self._by_lease)

    def add(self, store: _Store) -> None:
        """Renew the sessions of this store from now on."""
        with self._lock:
            self._stores[store] = None
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=(self._stop,), name="tubes-leases", daemon=True).start()

    def discard(self, store: _Store) -> None:
        """Stop renewing the sessions of this store; the thread ends with the last store."""
        with self._lock:
            self._stores.pop(store, None)
            if self._stop is not None and not self._stores:
                self._stop.set()
                self._stop = None

    def _run(self, stop: threading.Event) -> None:
        # Sessions on other servers must be renewed before their leases expire, even while this server is down.
        patience = min(self._lease / 12, 5.0)
        channel = ThreadChannel(self._server, "b", patience)
        while not stop.wait(self._lease / 3):
            # Nodes that did not reply to one store; the next stores skip them.
            lost: set[str] = set()
            with self._lock:
                stores = [*self._stores]
            for store in stores:
                store.renew_sessions(channel, patience, lost)
        channel.close()
