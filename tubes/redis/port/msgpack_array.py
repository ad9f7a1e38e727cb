"""Pack words into one string, a MessagePack array of strings, which functions unpack.

A server handles the string as one argument of a request and as one item of a list. See the formats `str` and `array` in
the specification of MessagePack, https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final


def _head(size: int) -> bytes:
    """Return the header of a string of `size` bytes."""
    if size < 32:
        return bytes((0xA0 | size,))
    if size < 1 << 8:
        return bytes((0xD9, size))
    if size < 1 << 16:
        return b"\xda" + size.to_bytes(2, "big")
    return b"\xdb" + size.to_bytes(4, "big")


#: Headers of short strings, the common case.
_HEADS: Final = [_head(size) for size in range(1 << 12)]


def packed(words: Iterable[object]) -> bytes:
    """Pack bytes, strings and integers into one string.

    >>> packed([b"a", "b", 7])
    b'\\xdd\\x00\\x00\\x00\\x03\\xa1a\\xa1b\\xa17'
    """
    raws = [word if type(word) is bytes else str(word).encode() for word in words]
    parts = [part for raw in raws for part in (_HEADS[len(raw)] if len(raw) < 1 << 12 else _head(len(raw)), raw)]
    return b"".join((b"\xdd", len(raws).to_bytes(4, "big"), *parts))
