"""The types of the reply to each script. A reply of another type does not belong to the request.

A proxy may send a reply of its own, and an extra reply would be taken for the reply to the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Final, TypeAlias, cast, final

#: The beginnings of the errors for a command in a script that the user may not run.
_REFUSALS: Final = ("ERR ACL failure", "ERR The user executing the script can't")


@final
class ErrorReply(Exception):
    """An error reply of a server, `-ERR …`, as a value."""

    #: The SHA-1 of the script that raised it.
    sha: bytes = b""

    @property
    def code(self) -> str:
        """The first word of the error, which names its kind; NOPERM for a command that was refused in a script."""
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
    """Return a set of these types and of errors, which any script may return."""
    return frozenset((*kinds, ErrorReply))


NOTHING: Final = _kinds(NoneType)
NUMBER: Final = _kinds(int)
BYTES: Final = _kinds(bytes)
LIST: Final = _kinds(list)
#: The reply to a command that waits for a marker.
MARKER: Final = _kinds(NoneType, list)

#: Scripts by the types of their replies.
_METHODS: Final[Mapping[frozenset[type], str]] = {
    NOTHING: "alter damage disarm leave pace release_all resume stream_skip stream_slots truncate unput untake "
    "upload_words wake",
    NUMBER: "listen rate restart_cooldowns wake_at_due tick trim_done write_clean write_done write_keep",
    BYTES: "ack_many ack_with act_some bury cancel checkpoint decline delete delete_many evict first forget_key "
    "kick_task next pause peek relay release release_many renew_many set_ttr stream_ack stream_open take_task touch "
    "trial update write_stage",
    LIST: "check_end check_ids check_index check_lanes check_meta check_streams check_takes check_tasks "
    "due ended heartbeat lanes by_state open overview peek_many reasons scan_ids statistics take_for take_many tasks "
    "tube_drivers",
    _kinds(NoneType, bytes): "put put_many stream_retake stream_take write_seal",
    _kinds(NoneType, list): "again drop extent put_keyed put_limited session task_headers describe tube_names "
    "write_others",
    _kinds(NoneType, bytes, int): "oldest age",
    _kinds(bytes, int): "ack take",
}
_TYPES: Final = {method: kinds for kinds, methods in _METHODS.items() for method in methods.split()}


def reply_types_of(method: str) -> frozenset[type]:
    """Return the possible types of the reply to a script."""
    return _TYPES.get(method, ANY)
