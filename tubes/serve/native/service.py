"""Describe the service to a client: its version, the namespaces, and the rights of the token."""

from __future__ import annotations

from typing import Final

from tubes import __version__
from tubes.errors import Facts
from tubes.serve.namespaces import NO_NAMESPACE, limit_time
from tubes.serve.native import schemas
from tubes.serve.native.operations import Call, operation
from tubes.serve.tokens import TUBE_RIGHTS
from tubes.values.overview import exact_names

_TOKEN: Final = schemas.object_schema(
    {"id": schemas.TEXT, "description": schemas.TEXT, "grants": schemas.list_schema(schemas.TEXT)}
)
_SERVICE: Final = schemas.object_schema(
    {
        "version": schemas.TEXT,
        "namespaces": schemas.list_schema(schemas.TEXT),
        "rights": schemas.map_schema(schemas.list_schema(schemas.one_of(*TUBE_RIGHTS))),
        "token": schemas.nullable(_TOKEN),
    }
)


@operation("GET", "", "", replies={200: _SERVICE})
async def show_service(call: Call) -> Facts:
    """Show the version of the service, the namespaces in which the token may see tubes, and its grants.

    The namespaces are `_`, then those with tubes and those that a grant names exactly, by name. `rights`: the rights of
    the token on some tubes of each. `token` is null without tokens.
    """
    token, spaces = call.token, call.service.namespaces
    named = (name for grant in token.grants for name in exact_names([grant.namespace]))
    known = [NO_NAMESPACE, *sorted({*named, *await limit_time(spaces.root, spaces.names())})]
    rights = {name: [right for right in TUBE_RIGHTS if token.may_somewhere(right, name)] for name in known}
    rights = {name: some for name, some in rights.items() if "look" in some}
    facts = {"id": token.id, "description": token.description, "grants": list(map(str, token.grants))}
    known_token = facts if token.id else None
    return {"version": __version__, "namespaces": list(rights), "rights": rights, "token": known_token}
