"""List the changes that were made through the service."""

from __future__ import annotations

from typing import Final

from tubes.errors import Facts
from tubes.serve import audit
from tubes.serve.native import schemas
from tubes.serve.native.operations import Call, operation

_TEXT: Final = schemas.nullable(schemas.TEXT)
_CHANGE: Final = schemas.object_schema(
    {
        "id": schemas.INTEGER,
        "at": schemas.MOMENT,
        "token": {**_TEXT, "description": "The id of the token; null: the service has no tokens."},
        **dict.fromkeys(("description", "action"), schemas.TEXT),
        **dict.fromkeys(("tube", "lane"), _TEXT),
        "task": schemas.nullable(schemas.INTEGER),
        "arguments": schemas.map_schema(schemas.ANY),
        "count": {**schemas.nullable(schemas.INTEGER), "description": "The number of changed or removed tasks."},
        "outcome": {**schemas.one_of("unknown"), "description": "Present only if the backend did not reply."},
    },
    "outcome",
)


@operation(
    "GET",
    "/audit",
    "look",
    query={"limit": schemas.BATCH, "before": schemas.INTEGER},
    replies={200: schemas.object_schema({"changes": schemas.list_schema(_CHANGE)})},
)
async def list_changes(call: Call) -> Facts:
    """List up to `limit` (100) changes that were made through the service, newest first, before the id `before`.

    `action` is the name of the operation; `arguments` are the members of its body and query, without data of tasks. A
    move is recorded in both tubes; the name of the other tube is `...` if the token may not see it.
    Contains the changes of tubes that the token may see, and, with the right `admin`, those of tokens.
    """
    query = call.query()

    def is_visible(change: Facts) -> bool:
        if change["tube"] is None:
            return call.token.may_somewhere("admin", call.space.name)
        return call.may("look", change["tube"])

    limit, before = query.get("limit", 100), query.get("before")
    # Cached, since the read is slow if the token may see few of the changes.
    key = ("audit", call.token.grants, limit, before)
    changes = await call.service.recent.get(
        call.space.name, key, lambda: audit.read(call.space, is_visible, limit, before)
    )
    return {"changes": [_hide_tubes(call, change) for change in changes]}


def _hide_tubes(call: Call, change: Facts) -> Facts:
    """Hide the name of the other tube of a move if the token may not see it."""
    arguments = change["arguments"]
    hidden = {
        name: "..." for name in ("from", "to") if name in arguments and not call.may("look", str(arguments[name]))
    }
    return change | {"arguments": arguments | hidden}
