"""Tubes with keys of an older version of tubes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tubes
from tests.support import indexes
from tubes.testing import LocalServer

#: Two tubes in layout 2, each with a taken, a buried, a delayed and several waiting tasks.
_OLD = Path(__file__).parent / "layout2.json"
_LEFT = ["late", "first", "before a1", "c0", "a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3", "only"]


@pytest.fixture
def old_server(server: LocalServer) -> Any:
    """Return the server with the keys of an older version; all its timers are due."""
    client: Any = server.client()
    for key, (kind, fields) in json.loads(_OLD.read_text()).items():
        if kind == "set":
            client.sadd(key, *fields)
        elif kind == "hash":
            client.hset(key, mapping={name.encode("latin1"): word.encode("latin1") for name, word in fields.items()})
        else:
            moves = key.endswith((":due", ":leases"))
            client.zadd(key, {member.encode("latin1"): 1 if moves else score for member, score in fields.items()})
    for name in ("plain", "limited"):
        client.hset(f"tubes:{{{name}}}", "soonest", 1)
    return client


@pytest.mark.parametrize("name", ["plain"])
def test_tube_with_lanes_in_layout_2_is_upgraded(server: LocalServer, old_server: Any, name: str) -> None:
    with tubes.connect(server.url) as queue:
        tube: Any = queue.tube(name)
        assert tube.statistics().tasks == {"ready": 14, "taken": 0, "buried": 1, "delayed": 0, "done": 1, "total": 15}
        indexes.check(old_server, tube)
        assert queue.admin.check(name) == []
        taken: list[Any] = []
        while task := tube.take(timeout=1):
            indexes.check(old_server, tube)
            taken.append(task.data)
            task.ack()
        indexes.check(old_server, tube)
        assert (taken if name == "plain" else sorted(taken)) == (_LEFT if name == "plain" else sorted(_LEFT))
        assert tube.select("buried", limit=1).kick() == 1
        assert tube.take(timeout=1).data == "b0"
        assert old_server.hget(f"tubes:{{{name}}}", "layout") == b"3"


def test_upgrade_is_refused_while_an_older_version_is_connected(server: LocalServer, old_server: Any) -> None:
    old_server.zadd("tubes:{plain}:leases", {"s9.1.ab": "+inf"})
    with tubes.connect(server.url) as queue:
        with pytest.raises(tubes.ServerRefused, match="older version of tubes"):
            queue.tube("plain")
        assert old_server.hget("tubes:{plain}", "layout") == b"2"
        old_server.zrem("tubes:{plain}:leases", "s9.1.ab")
        assert queue.tube("plain").take(timeout=0) is not None


def test_tubes_without_lanes_keep_layout_2(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue:
        layouts: dict[str, Any] = {}
        for driver in ("fifo", "fifottl", "limfifottl", "utube", "utubettl"):
            queue.create_tube(driver, driver)
            layouts[driver] = server.client().hget(f"tubes:{{{driver}}}", "layout")
    assert layouts == {"fifo": b"2", "fifottl": b"2", "limfifottl": b"2", "utube": b"3", "utubettl": b"3"}
