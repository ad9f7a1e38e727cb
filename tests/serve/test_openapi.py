"""The API is as `/openapi.json` says, whatever a client sends."""

from __future__ import annotations

import re
from typing import Any

import hypothesis
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.served import Served
from tubes.serve.native import OPERATIONS

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
#: These do not end by themselves.
ENDLESS = "/stream$|/events$"


def test_every_operation_has_a_name_and_says_what_it_does(in_memory: Served) -> None:
    shown = in_memory.client.get("/openapi.json").json()
    described = [one for path in shown["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in described]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    assert all(one["summary"].endswith((".", ":")) for one in described)


def test_requests_of_all_kinds_get_what_is_described(in_memory: Served) -> None:
    served = in_memory
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    found: Any = schema.exclude(path_regex=ENDLESS).get_all_operations()
    operations = [result.ok() for result in found]
    assert len(operations) == len(OPERATIONS) - 2
    settings = hypothesis.settings(
        max_examples=3,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
        phases=[hypothesis.Phase.generate],
    )
    for operation in operations:
        for mode in schemathesis.GenerationMode:

            @settings
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                # The namespace and the tube of another request are there, now and then.
                if len(str(case.path_parameters.get("tube", ""))) % 2:
                    case.path_parameters["tube"] = "mail"
                if isinstance(case.body, dict) and not isinstance(case.body.get("wait"), str):
                    case.body.pop("wait", None)
                    case.body.pop("timeout", None)
                case.path_parameters["namespace"] = "fuzz"
                case.call_and_validate(checks=CHECKS, timeout=20)

            check()
    said = "".join(served.said)
    assert not re.search("Traceback|failed", said), said
    statuses = {line["status"] for line in served.lines() if line["path"].startswith("/v1/fuzz")}
    assert {200, 201, 204, 400, 404} <= statuses
    assert max(statuses) < 500
    assert served.client.get("/health/ready").status_code == 200
