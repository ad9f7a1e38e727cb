"""Leases: a take of a task, as text."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from typing import Any, Final, Self
from zlib import crc32

from tubes.errors import InvalidOption

#: The first character of a lease: the version of its format.
_VERSION: Final = "1"
#: `born`, `number`, `session`, `take` and `id`, as in `Lease`.
_FIELDS: Final = struct.Struct(">QIQQQ")
_SUM: Final = 4
_ALPHABET: Final = b"-_"
#: A take number that no take has.
NO_TAKE: Final = 2**64 - 1


class Lease(str):
    """A take of a task as text: `task.lease`. Another process may use it in place of the task.

    It is a string of letters, digits, `-` and `_`: about 60 characters, and the name of the tube. `Lease(text)` parses
    plain text; the methods of a `Tube` accept plain text, too.

    It ends with its take: when the task is acked, released, buried or deleted, when its ttr or ttl is over, when the
    session that took it ends, or when the server has lost the take in a restart. From then on methods raise
    `TaskNotTaken`. It is not signed: every program that has it may end the take.

    Format 1 is the digit 1, followed by these fields in base64url without padding; numbers are big-endian. 8 bytes: a
    number that differs for each tube of this name (on a server the microsecond of its creation). 4 bytes: the number
    of the session in the tube (0 in memory and in a folder). 8 bytes: the first half of the uuid of the session (0 in
    memory; in a folder, of this opening of the store). 8 bytes: the number of the take. 8 bytes: the id of the task.
    Then the name of the tube, and 4 bytes: the CRC-32 of all this, including the digit.

    Raises `InvalidOption` if the text has another format, or was cut or damaged.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.put("to ann")
    ...     text = str(tube.take(timeout=0).lease)
    ...     lease = tubes.Lease(text)
    ...     queue.tube(lease.tube).ack(lease).data
    'to ann'
    """

    __slots__ = ("born", "id", "number", "session", "take", "tube")

    #: The name of the task's tube.
    tube: str
    #: The id of the task.
    id: int
    #: A number that differs for each tube of that name; the session's number there, and half of its uuid; the take.
    born: int
    number: int
    session: int
    take: int

    def __new__(cls, text: str) -> Self:
        """Parse a lease."""
        untyped: Any = text
        if not isinstance(untyped, str):
            raise InvalidOption(option="lease", value=untyped, rule="must be a string")
        lease = super().__new__(cls, text)
        try:
            packed = b64decode(text[1:] + "=" * (-(len(text) - 1) % 4), _ALPHABET, validate=True)
            lease.born, lease.number, lease.session, lease.take, lease.id = _FIELDS.unpack_from(packed)
            lease.tube = packed[_FIELDS.size : -_SUM].decode()
            is_whole = _text_of(packed[:-_SUM]) == text and lease.take > 0
        except (ValueError, struct.error):
            is_whole = False
        if not is_whole:
            rule = "is not a lease, or was cut or damaged; an id must be an int"
            raise InvalidOption(option="lease", value=text, rule=rule)
        return lease

    @classmethod
    def of(cls, tube: str, id: int, born: int, number: int, session: int, take: int) -> Self:
        lease = super().__new__(cls, _text_of(_FIELDS.pack(born, number, session, take, id) + tube.encode()))
        lease.born, lease.number, lease.session, lease.take, lease.id = born, number, session, take, id
        lease.tube = tube
        return lease


def _text_of(fields: bytes) -> str:
    sum = crc32(fields, crc32(_VERSION.encode())).to_bytes(_SUM, "big")
    return _VERSION + b64encode(fields + sum, _ALPHABET).rstrip(b"=").decode()
