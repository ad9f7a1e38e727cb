"""A real cluster: three servers on loopback that share the slots."""

from __future__ import annotations

from typing import Any

import redis

from tests.contract.bench import eventually
from tests.support.lasting import OUTLIVES_KILLS
from tests.support.servers import Servers, free_port
from tubes.testing import LocalServer

_SLOTS = 16384


class Cluster(Servers):
    """Three masters without replicas, each with a third of the slots, that persist their state."""

    def __init__(self, program: str = "valkey", **settings: Any) -> None:
        self._program = program
        self._settings: dict[str, Any] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": 1000,
            **OUTLIVES_KILLS,
            **settings,
        }
        super().__init__(program, 3, **self._settings)
        for number, client in enumerate(self.clients):
            first, last = number * _SLOTS // 3, (number + 1) * _SLOTS // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for port in self.ports[1:]:
            self.clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        assert eventually(self.is_healthy), "the nodes did not find each other"

    def is_healthy(self) -> bool:
        """Return True if all nodes know all others and all slots."""
        try:
            return all(self._knows_all(client) for client in self.clients)
        except redis.RedisError:
            return False

    def _knows_all(self, client: Any) -> bool:
        about = client.execute_command("CLUSTER INFO")
        state = about if isinstance(about, dict) else dict(line.split(":") for line in about.decode().split())
        return state["cluster_state"] == "ok" and len(client.execute_command("CLUSTER SLOTS")) >= 3

    def add(self) -> int:
        """Add a node without slots; return its number."""
        self.ports.append(free_port())
        self.servers.append(LocalServer(self._program, port=self.ports[-1], **self._settings))
        self.clients.append(self.servers[-1].client())
        self.clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[-1])
        assert eventually(self.is_healthy), "the nodes did not find each other"
        return len(self.ports) - 1

    def id(self, number: int) -> str:
        """Return the name of a node in the cluster."""
        return str(self.clients[number].execute_command("CLUSTER", "MYID").decode())

    def move(self, slot: int, target: int | None = None) -> None:
        """Move a slot to another node (None: the next one), key by key, like `redis-cli --cluster reshard`."""
        source = self.owner(slot)
        if target is None:
            target = (source + 1) % len(self.ports)
        here, there = self.clients[source], self.clients[target]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))
        while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            here.execute_command("MIGRATE", "127.0.0.1", self.ports[target], "", 0, 5000, "KEYS", *keys)
        others = [client for client in self.clients if client not in (here, there)]
        for client in (there, here, *others):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id(target))

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"redis+cluster://127.0.0.1:{self.ports[0]}"

    def slot(self, key: str) -> int:
        """Return the slot of a key."""
        return int(self.clients[0].execute_command("CLUSTER KEYSLOT", key))

    def owner(self, slot: int) -> int:
        """Return the number of the node that owns a slot."""
        for client in self.clients:
            for first, last, node, *_ in client.execute_command("CLUSTER", "SLOTS"):
                if int(first) <= slot <= int(last):
                    return self.ports.index(int(node[1]))
        raise AssertionError(f"no node owns slot {slot}")
