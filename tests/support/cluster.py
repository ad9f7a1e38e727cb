"""A real cluster: three servers on loopback that share the slots."""

from __future__ import annotations

from typing import Any

import redis

from tests.contract.bench import eventually
from tests.support.lasting import OUTLIVES_KILLS
from tests.support.servers import Servers

_SLOTS = 16384


class Cluster(Servers):
    """Three masters without replicas, each with a third of the slots, that persist their state."""

    def __init__(self, program: str = "valkey", **settings: str) -> None:
        settings = {**OUTLIVES_KILLS, **settings}
        super().__init__(program, 3, cluster_enabled="yes", cluster_node_timeout=1000, **settings)
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
