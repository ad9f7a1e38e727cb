"""The ids of tasks for clients of later: uuids, which cannot be enumerated."""

from __future__ import annotations

import hmac
from typing import Final
from uuid import UUID

#: The free bits of a uuid: a tag that authenticates the id, and the masked id of the task. `_LOW`: the free bits in the
#: lower half of the uuid.
_TAG: Final = 66
_ID: Final = 56
_LOW: Final = 62


class Ids:
    """Convert task ids to uuids and back with a secret. Nothing is stored.

    >>> ids = Ids(b"secret")
    >>> ids.read(str(ids.encode(7)))
    7
    >>> ids.read("cb9aefdd-5bd1-4bf3-8c94-1ed5c2ea638e") is None
    True
    """

    def __init__(self, secret: bytes) -> None:
        self._secret: Final = secret

    def encode(self, id: int) -> UUID:
        """Return the uuid of a task, of version 4."""
        tag = self._bits(b"tag", id.to_bytes(8, "big"), _TAG)
        bits = tag << _ID | id ^ self._mask(tag)
        high, low = bits >> _LOW, bits & (1 << _LOW) - 1
        return UUID(int=(high >> 12) << 80 | 4 << 76 | (high & 0xFFF) << 64 | 2 << 62 | low)

    def read(self, text: str) -> int | None:
        """Return the task id of this uuid; None if it was not made with this secret."""
        try:
            number = UUID(text).int
        except ValueError:
            return None
        high = (number >> 80) << 12 | number >> 64 & 0xFFF
        bits = high << _LOW | number & (1 << _LOW) - 1
        tag = bits >> _ID
        id = bits & (1 << _ID) - 1 ^ self._mask(tag)
        return id if str(self.encode(id)) == text.lower() else None

    def _mask(self, tag: int) -> int:
        return self._bits(b"mask", tag.to_bytes(16, "big"), _ID)

    def _bits(self, label: bytes, message: bytes, count: int) -> int:
        return int.from_bytes(hmac.digest(self._secret, label + message, "sha256"), "big") >> 256 - count
