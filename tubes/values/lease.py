"""Leases: the hold of one take on its task, as text."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from typing import Any, Final, Self
from zlib import crc32

from tubes.errors import InvalidOption

#: The first character of a lease, which says how to read the others.
_FORM: Final = "1"
_LATER: Final = tuple("23456789")
#: The moment at which the tube was made, or another number of this tube alone; the number and half of the uuid of the
#: session; the take; the id of the task.
_FACTS: Final = struct.Struct(">QIQQQ")
_SUM: Final = 4
#: What is shorter is no lease of any form.
_LEAST: Final = 40
_ALPHABET: Final = b"-_"
#: The take of a lease that is of none.
NO_TAKE: Final = 2**64 - 1


class Lease(str):
    """The hold of one take on its task, as text: `task.lease`. Another process may use it in place of the task.

    It is a string of letters, digits, `-` and `_`, some 60 characters and the name of the tube. `Lease(text)` reads one
    that comes back as plain text; methods of a `Tube` take that, too.

    It ends with its take: when the task is acked, released, buried or deleted, when its ttr or ttl is over, when the
    session that took it ends, when a server comes back without it. From then on it is refused with `TaskNotTaken`. It
    is not signed: whoever has it may end the take.

    Form 1 is the digit 1 and then, in base64url without padding, numbers with their greatest byte first, and a name:
    what tells the tube from others of its name, 8 bytes (on a server the microsecond in which it was made); the number
    of the session in the tube, 4, and the first half of its uuid, 8 (in memory both are 0; in a folder the second one
    is of its opening); the number of the take, 8; the id of the task, 8; the name of the tube; and the CRC-32 of all
    this, the digit too, 4.

    Raises `InvalidOption` for a text of another form, and for one that was cut or damaged.

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
    #: Which of the tubes of that name it is; the session's number there, and half of its uuid; which take.
    born: int
    number: int
    session: int
    take: int

    def __new__(cls, text: str) -> Self:
        """Read a lease."""
        given: Any = text
        if not isinstance(given, str):
            raise InvalidOption(option="lease", value=given, rule="must be a string")
        lease = super().__new__(cls, text)
        if len(text) >= _LEAST and text.startswith(_LATER):
            raise InvalidOption(option="lease", value=text, rule=f"has a later form than {_FORM}, which is known here")
        try:
            packed = b64decode(text[1:] + "=" * (-(len(text) - 1) % 4), _ALPHABET, validate=True)
            lease.born, lease.number, lease.session, lease.take, lease.id = _FACTS.unpack_from(packed)
            lease.tube = packed[_FACTS.size : -_SUM].decode()
            is_whole = _text_of(packed[:-_SUM]) == text and lease.take > 0
        except (ValueError, struct.error):
            is_whole = False
        if not is_whole:
            rule = "is no lease, or was cut or damaged; an id must be an int"
            raise InvalidOption(option="lease", value=text, rule=rule)
        return lease

    @classmethod
    def of(cls, tube: str, id: int, born: int, number: int, session: int, take: int) -> Self:
        """The lease that says this."""
        lease = super().__new__(cls, _text_of(_FACTS.pack(born, number, session, take, id) + tube.encode()))
        lease.born, lease.number, lease.session, lease.take, lease.id = born, number, session, take, id
        lease.tube = tube
        return lease


def _text_of(facts: bytes) -> str:
    sum = crc32(facts, crc32(_FORM.encode())).to_bytes(_SUM, "big")
    return _FORM + b64encode(facts + sum, _ALPHABET).rstrip(b"=").decode()
