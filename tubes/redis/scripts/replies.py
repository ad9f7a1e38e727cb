"""What kinds of replies there are to a script: anything else is not its answer, whatever has sent it.

Something else than the server may answer on a channel, and one reply too many would be taken for that to the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Final, TypeAlias, cast, final


@final
class ErrorReply(Exception):
    """A server's `-ERR …`, as a value."""

    #: The name of the script to which it is the reply.
    sha: bytes = b""

    @property
    def code(self) -> str:
        """The first word of the error: what kind of error it is."""
        return str(self).partition(" ")[0]


#: What a server answers. Its type is looked at by `type(reply) is`.
Reply: TypeAlias = "int | bytes | list[Reply] | ErrorReply | None"


def number_of(reply: object) -> int:
    """A number, or the digits of one; these three raise `TypeError` or `ValueError` for anything else."""
    if not isinstance(reply, (int, bytes)):
        raise TypeError(f"{reply!r} is no number")
    return int(reply)


def bytes_of(reply: object) -> bytes:
    """What a server has as a string."""
    if not isinstance(reply, bytes):
        raise TypeError(f"{reply!r} is no string")
    return reply


def list_of(reply: object) -> list[Reply]:
    """The replies of a list."""
    if not isinstance(reply, list):
        raise TypeError(f"{reply!r} is no list")
    return cast("list[Reply]", reply)


#: Whatever a server may answer.
ANY: Final = frozenset({NoneType, int, bytes, list, ErrorReply})


def _kinds(*kinds: type) -> frozenset[type]:
    """Make a set of these kinds of replies and of errors, which any script may answer."""
    return frozenset((*kinds, ErrorReply))


NOTHING: Final = _kinds(NoneType)
NUMBER: Final = _kinds(int)
BYTES: Final = _kinds(bytes)
LIST: Final = _kinds(list)
#: What a command answers that waits for a marker.
MARKER: Final = _kinds(NoneType, list)

#: The verbs by what they answer.
_VERBS: Final[Mapping[frozenset[type], str]] = {
    NOTHING: "alter disarm leave mark pace release_all resume stage stream_skip stream_slots truncate unput untake",
    NUMBER: "kick listen rate restart_rests ring tick trim_done write_clean write_done write_keep",
    BYTES: "ack_many ack_with bury decline delete delete_many evict first forget_key kick_delayed kick_task next "
    "pause peek relay release release_many renew_many set_ttr stream_ack stream_open take_task touch trial "
    "truncate_state update write_stage",
    LIST: "beat check_end check_ids check_index check_lanes check_meta check_streams check_takes check_tasks "
    "due ended ids listed living looks open overview reasons statistics take_for take_many tasks utubes",
    _kinds(NoneType, bytes): "put put_many stream_retake stream_take write_seal",
    _kinds(NoneType, list): "again drop extent heads names put_keyed put_limited session there write_others",
    _kinds(NoneType, bytes, int): "oldest age",
    _kinds(bytes, int): "ack take",
}
_OF: Final = {verb: kinds for kinds, verbs in _VERBS.items() for verb in verbs.split()}


def answers_of(verb: str) -> frozenset[type]:
    """The kinds of replies to the script of a verb."""
    return _OF.get(verb, ANY)
