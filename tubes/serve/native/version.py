"""What a client of the service can use: its version, the namespaces, and the rights of the token."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from tubes import __version__
from tubes.serve.bodies import json_reply
from tubes.serve.namespaces import NO_NAMESPACE, limit_time
from tubes.serve.native import schemas
from tubes.serve.native.operations import Call, Operation, root_operation

_TOKEN: Final = schemas.object_schema(
    {"id": schemas.TEXT, "description": schemas.TEXT, "grants": schemas.list_schema(schemas.TEXT)}
)
_WILDCARDS: Final = re.compile(r"[*?\[]")


@root_operation(
    "GET",
    replies={
        200: schemas.object_schema(
            {
                "version": schemas.TEXT,
                "namespaces": schemas.list_schema(schemas.TEXT),
                "token": schemas.nullable(_TOKEN),
            }
        )
    },
)
async def show_service(call: Call) -> Response:
    """Show the version of the service, the namespaces in which the token may see tubes, and its grants.

    The namespaces are `_`, those with tubes, and those that a grant names exactly. `token` is null without tokens.
    """
    token = call.token
    root = call.service.namespaces.root
    named = {grant.namespace for grant in token.grants if not _WILDCARDS.search(grant.namespace)}
    found = {NO_NAMESPACE, *named, *await limit_time(root, root.admin.namespaces())}
    facts = {"id": token.id, "description": token.description, "grants": list(map(str, token.grants))}
    return json_reply(
        {
            "version": __version__,
            "namespaces": sorted(name for name in found if token.may_somewhere("look", name)),
            "token": facts if token.id else None,
        }
    )


OPERATIONS: Final[tuple[Operation, ...]] = (show_service,)
