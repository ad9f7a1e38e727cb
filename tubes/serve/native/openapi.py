"""Build the description of the native API, `/openapi.json`, from its operations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tubes.errors import Facts
from tubes.serve.native.operations import PATH, Operation
from tubes.serve.native.schemas import Schema
from tubes.serve.problems import MEDIA_TYPE

_PROBLEM: Final[Schema] = {
    "type": "object",
    "description": "An error as in RFC 9457; other members are the facts of the error.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
    "required": ["type", "title", "status"],
}


def description(operations: Iterable[Operation], version: str) -> dict[str, object]:
    paths: Facts = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Task tubes", "version": version},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(operation: Operation) -> dict[str, object]:
    path_names = re.findall(r"{(\w+)}", operation.path)
    summary, _, details = (operation.handler.__doc__ or "").strip().partition("\n")
    document: dict[str, object] = {
        "operationId": operation.name,
        "summary": summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": PATH[name]} for name in path_names),
            *(
                {"name": name, "in": "query", "required": name in operation.rules.get("required", ()), "schema": schema}
                for name, schema in operation.query.items()
            ),
        ],
        "responses": {
            **{str(status): _reply(schema, operation.media_type) for status, schema in operation.replies.items()},
            "default": {
                "description": "A problem.",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if details:
        document["description"] = " ".join(details.split())
    if operation.takes_bytes:
        document["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif operation.body["properties"]:
        document["requestBody"] = {
            "required": "required" in operation.body or "anyOf" in operation.body,
            "content": {"application/json": {"schema": operation.body}},
        }
    return document


def _reply(schema: Schema | None, media_type: str) -> dict[str, object]:
    if schema is None:
        return {"description": "Done, without a body."}
    return {"description": "Done.", "content": {media_type: {"schema": schema}}}
