"""The lists of workers and schedules over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

import tubes
from tubes.aio.queue import AsyncQueueAdmin
from tubes.serve import Grant, Tokens, create_app
from tubes.serve.recent import Recent
from tubes.values.timings import Timings
from tubes.values.worker_info import HandlerInfo, HeldTask, ScheduleInfo, UnknownFunction, WorkerInfo


@pytest.mark.anyio
async def test_workers_and_schedules_of_visible_tubes_are_listed(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    _, text = tokens.create([Grant.read("look shop mail*")])
    async with tubes.aio.connect(codec="json") as queue, await queue.namespace("shop") as shop:
        mail = await shop.create_tube("mail", "fifottl", ttr=60)
        await mail.put("to ann")
        task = await mail.take(0)
        assert task is not None
        await task.checkpoint(progress=0.5, note="half")
        first = WorkerInfo(
            *("1", "web1", 7, 1.0),
            handlers=(HandlerInfo("send", ("mail", "other"), 2, ("send",)), HandlerInfo("hide", ("other",), 1)),
            unknown=(UnknownFunction("mail", "sedn"), UnknownFunction("mail", "send"), UnknownFunction("other", "x")),
            tasks=(HeldTask("mail", 0, 1, 5.0, "send"), HeldTask("mail", 9, 1, 6.0), HeldTask("other", 1, 1, 4.0)),
            schedules=(
                ScheduleInfo("sweep", "mail.sweep", "every 60 s", 120, 60, "acked"),
                ScheduleInfo("hide", "other", "every 60 s", 120),
            ),
        )
        second = WorkerInfo(
            *("2", "web2", 8, 2.0),
            handlers=(HandlerInfo("sweep", ("mail.sweep",), 1),),
            schedules=(
                ScheduleInfo("sweep", "mail.sweep", "every 60 s", 180),
                ScheduleInfo("report", "mail.sweep", "0 9 * * *", 100),
            ),
        )
        hidden = WorkerInfo("3", "web3", 9, 3.0, handlers=(HandlerInfo("hide", ("other",), 1),))
        entries = await shop.admin._workers_tube()
        for info in (first, second, hidden):
            await entries.put(asdict(info))
        timings = Timings("mail", "send", {}, {9: 2}), Timings("other", None, {}, {9: 2})
        await entries.put({"timings": [one.fields for one in timings]})
        transport = httpx.ASGITransport(create_app(queue, tokens=tokens))
        headers = {"authorization": f"Bearer {text}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://a/v1/shop", headers=headers) as client:
            listed = (await client.get("/workers")).json()
            workers, unknown = listed["workers"], listed["unknown"]
            durations = (await client.get("/durations")).json()["durations"]
            schedules = (await client.get("/schedules")).json()["schedules"]
    assert [(one["host"], one["pid"]) for one in workers] == [("web1", 7), ("web2", 8)]
    handler = {"name": "send", "tubes": ["mail"], "concurrency": 2, "functions": ["send"], "is_shared": False}
    assert workers[0]["handlers"] == [handler]
    held = {"tube": "mail", "attempts": 1}
    assert workers[0]["tasks"] == [
        {**held, "id": 0, "since": 5.0, "function": "send", "progress": 0.5, "note": "half"},
        {**held, "id": 9, "since": 6.0, "function": None, "progress": None, "note": None},
    ]
    assert [(one["tube"], one["function"], one["count"]) for one in durations] == [
        ("mail", None, 2),
        ("mail", "send", 2),
    ]
    assert durations[0]["wait_p50"] is None
    assert durations[0]["run_p50"] == durations[0]["run_p99"] > 0
    assert unknown == [{"tube": "mail", "name": "sedn"}]
    sweep = {"name": "sweep", "tube": "mail.sweep", "schedule": "every 60 s", "last": 60, "last_result": "acked"}
    report = {"name": "report", "tube": "mail.sweep", "schedule": "0 9 * * *", "last": None, "last_result": None}
    assert [one["name"] for one in workers[0]["schedules"]] == ["sweep"]
    assert schedules == [{**report, "next": 100, "workers": 1}, {**sweep, "next": 120, "workers": 2}]


@pytest.mark.anyio
async def test_only_tokens_with_the_same_grants_share_a_list_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    texts = [tokens.create([Grant.read(f"look shop {name}")])[1] for name in ("mail", "mail", "other")]
    reads, workers = 0, AsyncQueueAdmin.workers

    async def count(admin: AsyncQueueAdmin) -> list[WorkerInfo]:
        nonlocal reads
        reads += 1
        return await workers(admin)

    monkeypatch.setattr(AsyncQueueAdmin, "workers", count)
    async with tubes.aio.connect(codec="json") as queue, await queue.namespace("shop") as shop:
        schedules = (ScheduleInfo("sweep", "mail", "every 60 s", 120),)
        info = WorkerInfo("1", "web1", 7, 1.0, handlers=(HandlerInfo("send", ("mail",), 2),), schedules=schedules)
        await (await shop.admin._workers_tube()).put(asdict(info))
        app = create_app(queue, tokens=tokens)
        app.service.recent = Recent(lambda: 0.0)  # type: ignore[misc]
        found = dict[str, list[int]]()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a/v1/shop") as client:
            for name in ("workers", "schedules"):
                replies = [await client.get(f"/{name}", headers={"authorization": f"Bearer {one}"}) for one in texts]
                found[name] = [len(reply.json()[name]) for reply in replies]
    assert found == {"workers": [1, 1, 0], "schedules": [1, 1, 0]}
    assert reads == 4
