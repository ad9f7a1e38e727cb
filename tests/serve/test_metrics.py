"""`/metrics`: the requests of the service, and the tubes that a token may look at."""

from __future__ import annotations

import asyncio
import json
import string
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import TypeAlias

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route
from starlette.types import Scope

import tubes
from tubes.metrics.prometheus import make_families
from tubes.serve import Grant, Rate, Tokens, create_app
from tubes.serve.app import App
from tubes.serve.metrics import BUCKETS, NAMES, Metrics
from tubes.serve.tokens import ANONYMOUS
from tubes.values.timings import Timings

#: The values of samples, by name and by the values of their labels, which are sorted by the names of the labels.
Samples: TypeAlias = dict[str, dict[tuple[str, ...], float]]
REQUESTS, SECONDS, WAITING, STREAMS, SESSIONS, CONNECTIONS = NAMES


@asynccontextmanager
async def serving(tokens: Tokens | None = None) -> AsyncGenerator[tuple[App, httpx.AsyncClient]]:
    app = create_app(tubes.aio.connect("memory://", codec="json"), tokens=tokens)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client, app.service.run():
        yield app, client


def parse(text: str) -> Samples:
    found: Samples = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            found[name][tuple(labels[label] for label in sorted(labels))] = value
    return found


async def scrape(client: httpx.AsyncClient, token: str = "") -> Samples:
    reply = await client.get("/metrics", headers={"authorization": f"Bearer {token}"})
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/plain"), reply.text
    return parse(reply.text)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_requests_are_counted_by_template_method_and_status_but_not_by_path() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            for name in ("mail", "secret%0A%22%7D", "secret" * 300):
                await client.put(f"/v1/_/tubes/{name}")
            await client.post("/v1/_/tubes/secret")
            for path in ("/secret", '/secret"} 1', "/v1//secret", "/api/_/q/secret"):
                await client.get(path)
            await client.request("PROPFIND", "/v1/secret/tubes")
            await client.request("SECRET", "/secret")
            await client.post("/version")
            text = (await client.get("/metrics")).text
            assert parse(text)[REQUESTS] == {
                ("PUT", "/v1/{namespace}/tubes/{tube}", "2xx"): 1,
                ("PUT", "/v1/{namespace}/tubes/{tube}", "4xx"): 2,
                ("POST", "/v1/{namespace}/tubes/{tube}", "4xx"): 1,
                ("GET", "other", "4xx"): 3,
                ("GET", "/api/{rest}", "4xx"): 1,
                ("other", "/v1/{namespace}/tubes", "4xx"): 1,
                ("other", "other", "4xx"): 1,
                ("POST", "/version", "4xx"): 1,
            }
            assert "secret" not in text.lower()

    asyncio.run(main())


def test_latencies_are_cumulative_by_route() -> None:
    async def main() -> None:
        async with serving() as (app, _):
            metrics = Metrics(app.service)
            metrics.set_routes([Route("/version", parse)])
            scope: Scope = {"endpoint": parse, "method": "GET"}
            for seconds, status in ((0.0001, 200), (0.0005, 503), (0.3, 200), (1000, 404)):
                metrics.record(scope, status, seconds)
            samples = parse((await metrics.text(ANONYMOUS)).decode())
            edges = {edge: count for (edge, route), count in samples[f"{SECONDS}_bucket"].items() if "version" in route}
            assert len(edges) == len(BUCKETS) + 1
            assert (edges["0.0005"], edges["0.1"], edges["0.5"], edges["600.0"], edges["+Inf"]) == (2, 2, 3, 3, 4)
            assert samples[f"{SECONDS}_sum"]["/version",] == 1000.3006
            assert samples[f"{SECONDS}_count"]["/version",] == 4

    asyncio.run(main())


def test_waiting_requests_streams_and_sessions_are_counted() -> None:
    async def main() -> None:
        async with serving() as (app, client):
            await client.put("/v1/_/tubes/mail")
            session = (await client.post("/v1/_/sessions", json={})).json()["session"]
            service = app.service
            service.connections = {1, 2}
            running = [
                asyncio.create_task(client.post("/v1/_/tubes/mail/take", json={"wait": 60})),
                asyncio.create_task(client.post("/v1/_/tubes/mail/take", json={"wait": 60, "session": session})),
                asyncio.create_task(client.post("/v1/_/tubes/mail/stream")),
            ]
            await until(lambda: (len(service.polls), service.polls.streams) == (3, 1))
            samples = await scrape(client)
            assert [samples[name][()] for name in (WAITING, STREAMS, SESSIONS, CONNECTIONS)] == [2, 1, 1, 2]
            service.connections = None
            service.close()
            await asyncio.gather(*running)
            samples = await scrape(client)
            assert [samples[name][()] for name in (WAITING, STREAMS, SESSIONS)] == [0, 0, 1]
            assert CONNECTIONS not in samples

    asyncio.run(main())


def test_tubes_have_the_metrics_of_the_collector() -> None:
    async def main() -> None:
        async with serving() as (app, client):
            for space in ("_", "shop"):
                await client.put(f"/v1/{space}/tubes/mail")
                await client.post(f"/v1/{space}/tubes/mail/tasks", json={"data": 1})
            await client.post("/v1/shop/tubes/mail/pause", json={})
            async with app.service.namespaces.visit("shop") as shop:
                fields = {"timings": [Timings("mail", "send", {9: 1}, {9: 1}).fields]}
                await (await shop.queue.admin._workers_tube()).put(fields)
            samples = await scrape(client)
            functions = {(function, quantile) for function, _, quantile, _ in samples["tubes_worker_run_seconds"]}
            assert functions == {*product(("", "send"), ("0.5", "0.95", "0.99"))}
            assert samples["tubes_tasks"]["shop", "ready", "mail"] == samples["tubes_tasks"]["", "ready", "mail"] == 1
            assert samples["tubes_paused"] == {("", "mail"): 0, ("shop", "mail"): 1}
            assert samples["tubes_calls_total"]["put", "shop", "mail"] == 1
            assert samples["tubes_oldest_ready_age_seconds"]["shop", "mail"] > 0
            names = {name for name in make_families() if not name.startswith("tubes_folder")}
            assert names <= samples.keys()
            app.service.recent.forget("")
            await app.service.namespaces.root.close()  # The metrics of the requests do not need the backend.
            samples = await scrape(client)
            assert samples["tubes_up"] == {(): 0}
            assert samples[REQUESTS]["GET", "/metrics", "2xx"] == 1
            assert "tubes_tasks" not in samples

    asyncio.run(main())


def test_a_token_sees_the_tubes_that_it_may_look_at(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    grants = ("put,take,look,manage", "look shop m*", "look shop mail", "put,take")
    every, some, one, none = (tokens.create([Grant.read(grant)])[1] for grant in grants)
    limited = tokens.create([Grant.read("look")], rates={"look": Rate.read("1/3600")})[1]

    async def main() -> None:
        async with serving(tokens) as (_, client):
            headers = {"authorization": f"Bearer {every}"}
            for tube in ("shop/tubes/mail", "shop/tubes/mill", "shop/tubes/jobs", "bank/tubes/mail", "_/tubes/mail"):
                await client.put(f"/v1/{tube}", headers=headers)
            for token in ("", "nix"):
                reply = await client.get("/metrics", headers={"authorization": f"Bearer {token}"})
                assert (reply.status_code, "tubes_" in reply.text) == (401, False)
            visible = {token: set((await scrape(client, token))["tubes_waiting"]) for token in (every, some, one, none)}
            shown = {("shop", "mail"), ("shop", "mill"), ("shop", "jobs"), ("bank", "mail"), ("", "mail")}
            assert list(visible.values()) == [shown, {("shop", "mail"), ("shop", "mill")}, {("shop", "mail")}, set()]
            assert (await scrape(client, none))[REQUESTS]["PUT", "/v1/{namespace}/tubes/{tube}", "2xx"] == 5
            headers = {"authorization": f"Bearer {limited}"}
            assert [(await client.get("/metrics", headers=headers)).status_code for _ in range(2)] == [200, 429]

    asyncio.run(main())


def test_every_allowed_name_is_a_label() -> None:
    name = string.ascii_letters + string.digits + "_.:+/;$()-"

    async def main() -> None:
        async with serving() as (_, client):
            hostile = 'a"} 1\n# TYPE x\r\\n\u202e<b>\x1b[0m'
            path = f"/v1/{name.replace('/', '%2F')}/tubes/{name.replace('/', '%2F')}"
            body = json.dumps({"driver": "utubettl", "options": {"ttr": 60}})
            assert (await client.put(path, content=body)).status_code == 201
            body = json.dumps({"data": hostile, "utube": hostile})
            assert (await client.post(f"{path}/tasks", content=body)).status_code == 201
            await client.post(f"{path}/lanes/x/block", content=json.dumps({"seconds": 60, "reason": hostile}))
            samples = await scrape(client)
            assert samples["tubes_lanes"] == {(name, name): 2}
            assert samples["tubes_throttled_lanes"] == {(name, name): 1}

    asyncio.run(main())
