"""Samples of the counts of tubes, and lists of tubes by parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tubes.aio
from tests.support.served import Served
from tubes.serve import Grant, Tokens, create_app
from tubes.serve import history as module
from tubes.serve.history import SAMPLES, Buffers, History
from tubes.serve.namespaces import Namespaces
from tubes.serve.recent import Recent
from tubes.values.overview import Overview
from tubes.values.statistics import Statistics


def overview(ready: int = 0, put: int = 0, done: int = 0, bury: int = 0, ttr: int = 0, release: int = 0) -> Overview:
    tasks = {"ready": ready, "taken": 0, "delayed": 0, "buried": bury, "done": done, "total": ready + bury}
    calls = {"put": put, "bury": bury, "ttr": ttr, "release": release}
    return Overview("fifo", Statistics(tasks, calls), 0.0, 0, {})


def test_sample_has_counts_and_rates_since_the_previous_one() -> None:
    history = History({})
    history.add(100.0, {"mail": overview(ready=7, put=7)})
    history.add(105.0, {"mail": overview(ready=7, put=7)})
    history.add(115.0, {"mail": overview(ready=4, put=27, done=20, bury=2, ttr=3)})
    history.add(120.0, {"mail": overview(ready=4, put=27, done=20, bury=2, ttr=3)})
    samples: dict[str, list[float]] = {
        "at": [100.0, 105.0, 115.0, 120.0],
        "ready": [7, 7, 4, 4],
        "taken": [0] * 4,
        "delayed": [0] * 4,
        "buried": [0, 0, 2, 2],
        "put": [0, 0, 2.0, 0],
        "done": [0, 0, 2.0, 0],
        "failed": [0, 0, 0.5, 0],
    }
    assert history.read("mail", SAMPLES) == samples
    for count in (1, 2, 3):
        assert history.read("mail", count) == {name: values[-count:] for name, values in samples.items()}
    assert history.interval == 6.7


def test_young_and_dropped_tubes_have_only_their_own_samples() -> None:
    history = History({})
    history.add(0.0, {"old": overview()})
    history.add(5.0, {"old": overview(), "young": overview(ready=1, put=1)})
    assert history.read("young", 9, ("ready", "put")) == {"at": [5.0], "ready": [1], "put": [0]}
    history.add(10.0, {"young": overview(ready=1, put=1)})
    assert history.read("old", 9, ("ready",)) == {"at": [], "ready": []}


def test_tube_that_was_created_again_has_no_negative_rate() -> None:
    history = History({})
    history.add(0.0, {"mail": overview(put=9, done=9)})
    history.add(5.0, {"mail": overview(ready=1, put=1)})
    assert history.read("mail", 9, ("put", "done")) == {"at": [0.0, 5.0], "put": [0, 0], "done": [0, 0]}


def test_ring_keeps_the_last_samples() -> None:
    buffers: Buffers = {}
    history = History(buffers)
    for number in range(2000):
        history.add(5.0 * number, {"busy": overview(ready=number % 7, put=number), "idle": overview(ready=3)})
    samples = history.read("busy", SAMPLES)
    assert samples["at"] == [5.0 * number for number in range(2000 - SAMPLES, 2000)]
    assert samples["ready"] == [number % 7 for number in range(2000 - SAMPLES, 2000)]
    assert samples["put"] == [0.2] * SAMPLES
    assert history.read("idle", SAMPLES, ("ready",))["ready"] == [3] * SAMPLES
    (tube,) = buffers
    assert tube.buffer is not None
    assert len(tube.buffer) * tube.buffer.itemsize <= 21_000


def test_only_the_tubes_that_changed_last_have_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BUFFERS", 2)
    buffers: Buffers = {}
    history, other = History(buffers), History(buffers)
    history.add(0.0, {name: overview() for name in "abc"})
    history.add(5.0, {name: overview(put=5) for name in "abc"})
    assert [len(history.read(name, 9)["at"]) for name in "abc"] == [2, 2, 1]  # All change: the first ones keep theirs.
    other.add(5.0, {"d": overview()})
    other.add(70.0, {"d": overview(put=1)})  # `a` is idle for a minute.
    history.add(75.0, {"a": overview(put=5), "b": overview(put=6), "c": overview(put=5)})
    assert [len(history.read(name, 9)["at"]) for name in "abc"] == [2, 3, 2]
    assert len(buffers) == 2
    history.add(80.0, {})
    assert len(buffers) == 1


def test_tube_whose_ring_goes_to_another_namespace_keeps_a_history_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BUFFERS", 1)
    buffers: Buffers = {}
    young, old = History(buffers), History(buffers)
    young.add(0.0, {"a": overview()})
    young.add(5.0, {"a": overview(ready=1, put=1)})
    for number in range(100):
        old.add(5.0 * number, {"b": overview()})
    old.add(500.0, {"b": overview(ready=2, put=2)})
    assert young.read("a", 9, ("ready",)) == {"at": [5.0], "ready": [1]}
    young.add(505.0, {"a": overview(ready=1, put=1)})
    assert young.read("a", 9, ("ready", "put")) == {"at": [5.0, 505.0], "ready": [1, 1], "put": [0, 0]}
    assert old.read("b", 2, ("ready", "put")) == {"at": [495.0, 500.0], "ready": [0, 2], "put": [0, 0.4]}


async def _sampled(wanted: list[bool]) -> list[bool]:
    """Request samples of a namespace at the wanted steps; return whether sampling was still running after each step."""
    now = 0.0
    queue = tubes.aio.connect("memory://", codec="json")
    await queue.create_tube("mail")
    samplers = module.Samplers(Namespaces(queue, 10), Recent(lambda: now), lambda: now)
    sampled: list[bool] = []
    with samplers.watch("_") as moments:
        at = await moments.get()
        assert samplers.keep_sampling("_").at == at
    for again in wanted:
        if again:
            samplers.keep_sampling("_")
        now += 29.0
        await asyncio.sleep(0.01)
        sampled.append(not samplers._samplers["_"].task.done())
    # The samples are kept, and sampling continues at the next request, even if the clock was set back.
    assert samplers.keep_sampling("_").at == samplers.keep_sampling("_").at is not None
    await asyncio.sleep(0.01)
    sampled.append(not samplers._samplers["_"].task.done())
    await samplers.close()
    await queue.close()
    return sampled


def test_clock_may_be_set_back_and_releases_are_failures() -> None:
    history = module.History({})
    history.add(1000.0, {"a": overview()})
    history.add(10.0, {"a": overview(release=5)})
    history.add(15.0, {"a": overview(release=10)})
    assert history.read("a", 3, ("failed",)) == {"at": [1000.0, 10.0, 15.0], "failed": [0, 1, 1]}
    assert history.interval >= 0


def test_sampler_survives_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.001)

    async def main() -> None:
        queue = tubes.aio.connect("memory://", codec="json")
        await queue.create_tube("mail")
        samplers = module.Samplers(Namespaces(queue, 10), Recent())
        read, errors = samplers.read_recent_tubes, [ValueError("a bug"), OSError("no network")]

        async def fail(namespace: str) -> object:
            if errors:
                raise errors.pop()
            return await read(namespace)

        monkeypatch.setattr(samplers, "read_recent_tubes", fail)
        with samplers.watch("_") as moments:
            async with asyncio.timeout(10):
                await moments.get()
        assert errors == []
        await samplers.close()
        await queue.close()

    asyncio.run(main())


def test_namespace_is_sampled_until_half_a_minute_after_the_last_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.001)
    assert asyncio.run(_sampled([True, True, False])) == [True, True, False, True]


@pytest.fixture
def http(served: Served, base: str) -> Iterator[httpx.Client]:
    """A client of a namespace of its own, with some tubes."""
    with httpx.Client(base_url=served.url + base, timeout=30) as client:
        for name, tasks in (("mail", 2), ("Maps", 1), ("jobs", 3), ("idle", 0)):
            assert client.put(f"/tubes/{name}").status_code == 201
            for number in range(tasks):
                assert client.post(f"/tubes/{name}/tasks", json={"data": number}).status_code == 201
        yield client


def listed(http: httpx.Client, **query: Any) -> tuple[list[str], int]:
    reply = http.get("/tubes", params=query)
    assert reply.status_code == 200, reply.text
    return list(reply.json()["tubes"]), reply.json()["total"]


def test_list_of_tubes_is_filtered_sorted_and_cut(http: httpx.Client) -> None:
    assert listed(http, limit=2) == (["Maps", "idle"], 4)
    assert listed(http, limit=2, offset=2) == (["jobs", "mail"], 4)
    assert listed(http, sort="ready") == (["jobs", "mail", "Maps", "idle"], 4)
    assert listed(http, sort="waiting", limit=1) == (["Maps"], 4)
    assert listed(http, contains="MA") == (["Maps", "mail"], 2)
    oldest = http.get("/tubes?sort=oldest&limit=3&ages=1").json()["tubes"]
    assert oldest.keys() == {"mail", "Maps", "jobs"}
    ages = [tube["oldest_ready_age"] for tube in oldest.values()]  # The ages are read one after the other.
    assert ages == sorted(ages, reverse=True)
    reply = http.get("/tubes?contains=ma&limit=1&ages=1").json()
    assert (reply["tasks"]["ready"], reply["tasks"]["total"]) == (3, 3)
    assert reply["tubes"]["Maps"]["oldest_ready_age"] >= 0
    assert reply["tubes"]["Maps"]["rights"] == ["put", "take", "look", "manage"]
    assert http.get("/tubes?limit=0").status_code == http.get("/tubes?sort=size").status_code == 400


def test_list_is_read_again_after_a_change_by_a_manager(http: httpx.Client) -> None:
    assert listed(http, limit=9)[1] == 4
    assert http.delete("/tubes/idle").status_code == 204
    assert listed(http, limit=9)[1] == 3


def test_tube_has_rights_sessions_lanes_and_age(http: httpx.Client) -> None:
    plain, aged = http.get("/tubes/mail").json(), http.get("/tubes/mail?ages=1").json()
    assert plain["rights"] == ["put", "take", "look", "manage"]
    facts = [plain[name] for name in ("sessions", "lanes", "throttled_lanes", "oldest_ready_age")]
    assert facts == [1, None, 0, None]
    assert aged["oldest_ready_age"] >= 0
    assert http.get("/tubes/none?ages=1").status_code == 404


def test_stream_of_samples_starts_at_once_and_fills_the_history(http: httpx.Client) -> None:
    assert http.get("/tubes/none/history").status_code == 404
    assert listed(http, history=9)[1] == 4
    with http.stream("GET", "/samples") as reply:
        lines = reply.iter_lines()
        assert reply.headers["content-type"].startswith("text/event-stream")
        event, data = (line for line in (next(lines) for _ in range(4)) if line and line[0] != ":")
        assert event == "event: sample"
        at = float(data.removeprefix('data: {"at":').removesuffix("}"))
        assert abs(at - time.time()) < 20
        samples = http.get("/tubes/mail/history").json()
        assert (samples["at"][-1], samples["ready"][-1], samples["interval"]) == (at, 2, 5)
        assert samples.keys() == {"interval", "at", *module.COUNTS, *module.RATES}
        reply_now = http.get("/tubes?history=3&limit=1&sort=ready").json()
        assert reply_now["tubes"]["jobs"]["history"] == {"put": [0], "done": [0], "failed": [0], "ready": [3]}


def test_tokens_see_only_their_tubes_in_parts_of_the_list(http: httpx.Client, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    grants = {
        "exact": ["look shop mail", "put shop mail"],
        "wild": ["look shop m*", "manage shop nothing"],
        "all": ["look,put,take,manage"],
    }
    texts = {name: tokens.create(list(map(Grant.read, some)))[1] for name, some in grants.items()}
    with Served("--url", "memory://", "--tokens", tokens.path) as served:

        def get(token: str, path: str) -> Any:
            reply = served.client.get(f"/v1/{path}", headers={"authorization": f"Bearer {texts[token]}"})
            return reply.json() if reply.status_code == 200 else reply.status_code

        for name in ("mail", "jobs"):
            path = f"/v1/shop/tubes/{name}"
            served.client.put(path, headers={"authorization": f"Bearer {texts['all']}"}).raise_for_status()
        for token, names in (("exact", ["mail"]), ("wild", ["mail"]), ("all", ["jobs", "mail"])):
            reply = get(token, "shop/tubes?limit=9&history=2")
            assert (list(reply["tubes"]), reply["total"]) == (names, len(names))
            assert list(get(token, "shop/tubes?limit=9&ages=1")["tubes"]) == names
        assert get("exact", "shop/tubes/mail")["rights"] == ["put", "look"]
        assert get("exact", "shop/tubes?sort=ready")["tubes"]["mail"]["rights"] == ["put", "look"]
        assert get("exact", "shop/tubes/jobs/history") == get("exact", "other/samples") == 403


def test_service_samples_all_namespaces_with_history() -> None:
    async def main() -> set[str]:
        queue = tubes.aio.connect("memory://", codec="json")
        await (await queue.namespace("shop")).create_tube("mail")
        service = create_app(queue, history=True).service
        async with service.run():
            await asyncio.sleep(0.01)
            return set(service.samplers._samplers)

    assert asyncio.run(main()) == {"_", "shop"}
