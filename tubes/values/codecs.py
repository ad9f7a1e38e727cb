"""Codecs: how data becomes bytes and comes back.

`memory://` stores objects unchanged unless a codec is given; a server always needs one.
There is no pickle codec: anybody who can write to the queue could run code in its readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from tubes.errors import CodecError, InvalidOption, needs


@runtime_checkable
class Codec(Protocol):
    """Turns data into bytes and back. The caller of the queue gets any error of its methods as a `CodecError`.

    >>> class Text:
    ...     def encode(self, data):
    ...         return data.encode()
    ...     def decode(self, raw):
    ...         return raw.decode()
    >>> import tubes
    >>> with tubes.connect(codec=Text()) as queue:
    ...     queue.create_tube("mail").put(5)
    Traceback (most recent call last):
    tubes.errors.CodecError: codec 'Text' cannot encode 5: 'int' object has no attribute 'encode'.
    """

    def encode(self, data: Any) -> bytes:
        """Return the data as bytes."""
        ...

    def decode(self, raw: bytes) -> Any:
        """Return the data of these bytes: a new object each time."""
        ...


# Made once: `json.dumps` makes one at each call that has options, `json.loads` looks for other encodings first.
_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder().decode


class JsonCodec:
    """JSON in UTF-8: strings, finite numbers, booleans, None, lists and dicts.

    Tuples come back as lists, and the keys of dicts as strings.
    """

    def encode(self, data: object) -> bytes:
        """Compact JSON; NaN, infinities and other objects are refused."""
        return _to_json(data).encode()

    def decode(self, raw: bytes) -> Any:
        """The data of JSON bytes."""
        return _from_json(raw.decode("utf-8", "surrogatepass"))


class RawCodec:
    """Bytes, unchanged."""

    def encode(self, data: object) -> bytes:
        """Accepts bytes and bytearray."""
        if not isinstance(data, (bytes, bytearray)):
            raise TypeError("it takes only bytes")
        return bytes(data)

    def decode(self, raw: bytes) -> bytes:
        """Return the bytes as they are."""
        return raw


class MsgpackCodec:
    """MessagePack through msgspec (extra `msgpack`): faster and smaller than JSON, bytes and datetimes included."""

    def __init__(self) -> None:
        with needs("codec 'msgpack'", "msgpack"):
            self._msgspec = import_module("msgspec")

    def encode(self, data: object) -> bytes:
        """MessagePack; objects that msgspec does not know are refused."""
        raw: bytes = self._msgspec.msgpack.encode(data)
        return raw

    def decode(self, raw: bytes) -> Any:
        """The data of MessagePack bytes."""
        return self._msgspec.msgpack.decode(raw)


_BY_NAME: Final[dict[str, Callable[[], Codec]]] = {"json": JsonCodec, "raw": RawCodec, "msgpack": MsgpackCodec}


def find(codec: str | Codec) -> Codec:
    """A codec by its name (`json`, `raw`, `msgpack`), or the user's own."""
    if isinstance(codec, str):
        if codec not in _BY_NAME:
            raise InvalidOption(option="codec", value=codec, rule=f"must be one of {', '.join(_BY_NAME)}, or a Codec")
        return _BY_NAME[codec]()
    if isinstance(codec, type) or not isinstance(codec, Codec):  # pyright: ignore[reportUnnecessaryIsInstance]
        rule = "must be an object with encode(data) -> bytes and decode(bytes) -> data"
        raise InvalidOption(option="codec", value=codec, rule=rule)
    return codec


def same(one: Codec | None, other: Codec | None) -> bool:
    """Whether two codecs do the same, as far as one can tell."""
    return one == other or (type(one) is type(other) and type(one) in _BY_NAME.values())


def encode(codec: Codec, data: object) -> bytes:
    """The bytes of this data, or `CodecError`."""
    try:
        return codec.encode(data)
    except Exception as error:
        raise CodecError(codec=name_of(codec), action="encode", value=data, why=error) from error


def decode(codec: Codec, raw: bytes) -> Any:
    """The data of these bytes, or `CodecError`."""
    try:
        return codec.decode(raw)
    except Exception as error:
        raise CodecError(codec=name_of(codec), action="decode", value=raw, why=error) from error


def name_of(codec: Codec) -> str:
    """The name of a codec; of the user's own that of its class."""
    return next((name for name, kind in _BY_NAME.items() if kind is type(codec)), type(codec).__name__)
