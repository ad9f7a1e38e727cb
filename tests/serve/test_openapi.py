"""Property tests: the API conforms to `/openapi.json`."""

from __future__ import annotations

import os
import re
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.served import Served
from tubes.serve.native import OPERATIONS

pytestmark = pytest.mark.full

CHECKS = [
    *(not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance),
    *(positive_data_acceptance, negative_data_rejection),
]
SEED = int(os.environ.get("TUBES_FUZZ_SEED", "0"))
EXAMPLES = int(os.environ.get("TUBES_FUZZ_EXAMPLES", "3"))
#: Operations whose replies are endless.
ENDLESS = "/stream$|/events$|/samples$"


def test_each_operation_has_unique_id_and_summary(memory_service: Served) -> None:
    document = memory_service.client.get("/openapi.json").json()
    described = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in described]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    assert all(operation["summary"].endswith((".", ":")) for operation in described)


def test_parameters_and_events_of_streams_are_described(memory_service: Served) -> None:
    http = memory_service.client
    paths = http.get("/openapi.json").json()["paths"]
    (tubes,) = (one for one in paths["/v1/{namespace}/events"]["get"]["parameters"] if one["name"] == "tubes")
    assert tubes["required"]
    for names, is_valid in (("", False), ("a", True), ("a,b", True), ("a,,b", False), (",".join("a" * 101), False)):
        assert bool(re.search(tubes["schema"]["pattern"], names)) == is_valid
        assert http.get("/v1/fuzz/events", params={"tubes": names}).status_code == (404 if is_valid else 400)
    for name in ("events", "samples"):
        (content,) = paths[f"/v1/{{namespace}}/{name}"]["get"]["responses"]["200"]["content"].values()
        assert content["schema"]["properties"].keys() == {"event", "data"}


def use_known_values(case: Any, lease: str) -> None:
    """Put existing names and leases into a valid request, and remove options that depend on each other."""
    case.path_parameters |= {"namespace": "fuzz"} | {
        name: value for name, value in (("tube", "mail"), ("lease", lease)) if name in case.path_parameters
    }
    body: Any = case.body if isinstance(case.body, dict) else {}
    for name in ("ack", "leases"):
        if name in body:
            body[name] = [lease] * len(body[name])
    if len(body.get("results", ())) != len(body.get("ack", body.get("leases", ()))):
        body.pop("results", None)
    body |= {name: value for name, value in (("driver", "utubettl"), ("lease", lease)) if name in body}
    if "action" in body:
        body["with"] = {"to": "other"} if body["action"] == "move" else {}
    for filters in (body, case.query or {}):
        if filters.get("state") not in ("buried", "done", None) and case.path.endswith(("/select", "/tasks")):
            filters.pop("reason", None)
    if isinstance(options := body.get("options"), dict):
        if options.get("interval") is not None:
            options.pop("lane_rate", None)
        if not options.get("rate"):
            options.pop("burst", None)
        if not (options.get("interval") or options.get("lane_rate")):
            options.pop("lane_burst", None)
    if "interval" in body:
        body.pop("rate", None)
    query: Any = case.query or {}
    if "delay" in query:
        query.pop("at", None)
    if "key" not in query:
        query.pop("on_duplicate", None)
        query.pop("key_ttl", None)
    if "edges" in query:
        query["edges"] = query["edges"].partition(",")[0]


def shorten_wait(members: Any) -> None:
    """Shorten a valid wait; an invalid one is not changed."""
    for name in ("wait", "timeout"):
        wait = members.get(name) if isinstance(members, dict) else None
        if isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait <= 600:
            members[name] = 0.01


def test_valid_requests_are_accepted_and_invalid_ones_refused(memory_service: Served) -> None:
    """Run this with other seeds and more examples for a wider search."""
    served = memory_service
    http = httpx.Client(base_url=f"{served.url}/v1/fuzz", timeout=30)
    http.put("/tubes/mail", json={"driver": "utubettl", "options": {"ttr": 600}})
    http.post("/tubes/mail/tasks", json={"data": 1})
    lease = http.post("/tubes/mail/take").json()["tasks"][0]["lease"]
    http.delete(f"/leases/{lease}")
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    found: Any = schema.exclude(path_regex=ENDLESS).get_all_operations()
    operations = [result.ok() for result in found]
    assert len(operations) == len(OPERATIONS) - 3
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
        phases=[hypothesis.Phase.generate],
    )
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            if operation.path == "/v1" and not mode.is_positive:
                continue  # It has no parameter that could be invalid.

            @hypothesis.seed(SEED)
            @settings
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                if case.meta.generation.mode.is_positive:
                    use_known_values(case, lease)
                shorten_wait(case.body)
                shorten_wait(case.query)
                reply = case.call(timeout=20)
                # Supported options depend on the driver. A call to a tube without a worker times out.
                if not re.search("option-not-supported|call-timeout", reply.text):
                    case.validate_response(reply, checks=CHECKS)

            check()
    http.close()
    stderr = "".join(served.stderr_lines)
    assert not re.search("Traceback|failed", stderr), stderr
    statuses = {line["status"] for line in served.lines() if line["path"].startswith("/v1/")}
    assert {200, 201, 204, 400, 404} <= statuses
    assert max(statuses - {502, 504}) < 500  # A call may fail or time out.
    assert served.client.get("/health/ready").status_code == 200
