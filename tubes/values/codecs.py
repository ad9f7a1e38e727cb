"""Codecs: conversion of data to bytes and back.

`memory://` stores objects unchanged unless a codec is given; a server always needs one.
There is no pickle codec: every program that can write to the queue could run code in the programs that read from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from tubes.errors import CodecError, InvalidOption, needs


@runtime_checkable
class Codec(Protocol):
    """Converts data to bytes and back. Any error in a codec reaches the user of the queue as a `CodecError`.

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
        """Return the data as a new object on each call."""
        ...


# Created once: `json.dumps` with options creates an encoder per call, and `json.loads` detects the encoding first.
_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder().decode


class JsonCodec:
    """JSON in UTF-8: strings, finite numbers, booleans, None, lists and dicts.

    Tuples come back as lists, and the keys of dicts as strings.
    """

    def encode(self, data: object) -> bytes:
        """Return compact JSON. Raises for NaN, infinities and objects of other types."""
        return _to_json(data).encode()

    def decode(self, raw: bytes) -> Any:
        """Return the data of JSON bytes."""
        return _from_json(raw.decode("utf-8", "surrogatepass"))


class RawCodec:
    """Bytes, unchanged."""

    def encode(self, data: object) -> bytes:
        """Return a copy of `data`, which must be bytes or a bytearray."""
        if not isinstance(data, (bytes, bytearray)):
            raise TypeError(f"data must be bytes, got {type(data).__name__}")
        return bytes(data)

    def decode(self, raw: bytes) -> bytes:
        """Return the bytes unchanged."""
        return raw


class MsgpackCodec:
    """MessagePack through msgspec (extra `msgpack`): faster and smaller than JSON, bytes and datetimes included."""

    def __init__(self) -> None:
        with needs("codec 'msgpack'", "msgpack"):
            self._msgspec = import_module("msgspec")

    def encode(self, data: object) -> bytes:
        """Return MessagePack. Raises for objects of types that msgspec does not support."""
        raw: bytes = self._msgspec.msgpack.encode(data)
        return raw

    def decode(self, raw: bytes) -> Any:
        """Return the data of MessagePack bytes."""
        return self._msgspec.msgpack.decode(raw)


_BY_NAME: Final[dict[str, Callable[[], Codec]]] = {"json": JsonCodec, "raw": RawCodec, "msgpack": MsgpackCodec}


def find(codec: str | Codec) -> Codec:
    """Return the codec with this name (`json`, `raw`, `msgpack`), or check and return a custom codec."""
    if isinstance(codec, str):
        if codec not in _BY_NAME:
            raise InvalidOption(option="codec", value=codec, rule=f"must be one of {', '.join(_BY_NAME)}, or a Codec")
        return _BY_NAME[codec]()
    if isinstance(codec, type) or not isinstance(codec, Codec):  # pyright: ignore[reportUnnecessaryIsInstance]
        rule = "must be an object with encode(data) -> bytes and decode(bytes) -> data"
        raise InvalidOption(option="codec", value=codec, rule=rule)
    return codec


def are_same_codecs(one: Codec | None, other: Codec | None) -> bool:
    """True if two codecs are equal, or of the same built-in class."""
    return one == other or (type(one) is type(other) and type(one) in _BY_NAME.values())


def encode(codec: Codec, data: object) -> bytes:
    """Encode data. Raises `CodecError`."""
    try:
        return codec.encode(data)
    except Exception as error:
        raise CodecError(codec=name_of(codec), action="encode", value=data, why=error) from error


def decode(codec: Codec, raw: bytes) -> Any:
    """Decode bytes. Raises `CodecError`."""
    try:
        return codec.decode(raw)
    except Exception as error:
        raise CodecError(codec=name_of(codec), action="decode", value=raw, why=error) from error


def json_text(value: object) -> str:
    """Return any JSON value as text, which may contain lone surrogates. Raises `CodecError`."""
    try:
        return _to_json(value)
    except Exception as error:
        raise CodecError(codec="json", action="encode", value=value, why=error) from error


def value_of_json(text: str) -> Any:
    """Return the value of a text from `json_text`. Raises `CodecError`."""
    try:
        return _from_json(text)
    except Exception as error:
        raise CodecError(codec="json", action="decode", value=text, why=error) from error


def name_of(codec: Codec) -> str:
    """Return the name of a codec; for a custom codec, the name of its class."""
    return next((name for name, kind in _BY_NAME.items() if kind is type(codec)), type(codec).__name__)
