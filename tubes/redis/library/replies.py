"""The types of the reply to each function. A reply of another type does not belong to the request.

A proxy may send a reply of its own, and an extra reply would be taken for the reply to the next call.
"""

from __future__ import annotations

from types import NoneType
from typing import Final, TypeAlias, cast, final

#: The beginnings of the errors for a command in a function that the user may not run.
_REFUSALS: Final = ("ERR ACL failure", "ERR The user executing the script can't")


@final
class ErrorReply(Exception):
    """An error reply of a server, `-ERR …`, as a value."""

    @property
    def code(self) -> str:
        """The first word of the error, which names its kind; NOPERM for a command that was refused in a function."""
        text = str(self)
        return "NOPERM" if text.startswith(_REFUSALS) else text.partition(" ")[0]


#: A reply of a server. Compare its type with `type(reply) is`.
Reply: TypeAlias = "int | bytes | list[Reply] | ErrorReply | None"


def number_of(reply: object) -> int:
    """Return a number from a reply, or from digits. Raises `TypeError` or `ValueError` for anything else."""
    if not isinstance(reply, (int, bytes)):
        raise TypeError(f"{reply!r} is not a number")
    return int(reply)


def bytes_of(reply: object) -> bytes:
    """Return a reply that must be a string. Raises `TypeError` for anything else."""
    if not isinstance(reply, bytes):
        raise TypeError(f"{reply!r} is not a string")
    return reply


def list_of(reply: object) -> list[Reply]:
    """Return a reply that must be a list. Raises `TypeError` for anything else."""
    if not isinstance(reply, list):
        raise TypeError(f"{reply!r} is not a list")
    return cast("list[Reply]", reply)


#: All types of replies.
ANY: Final = frozenset({NoneType, int, bytes, list, ErrorReply})


def _kinds(*kinds: type) -> frozenset[type]:
    """Return a set of these types and of errors, which any function may return."""
    return frozenset((*kinds, ErrorReply))


NOTHING: Final = _kinds(NoneType)
NUMBER: Final = _kinds(int)
BYTES: Final = _kinds(bytes)
LIST: Final = _kinds(list)
#: The reply to a command that waits for a marker.
MARKER: Final = _kinds(NoneType, list)
