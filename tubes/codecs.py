"""Codecs: how data becomes bytes and comes back.

`memory://` keeps objects as they are unless a codec is named; backends outside the process always have one.
Pickle is not among them: whoever can write to the queue could run code in its readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from tubes.errors import CodecError, InvalidOption


@runtime_checkable
class Codec(Protocol):
    """Data to bytes and back. Both methods raise `CodecError` for what they cannot do."""

    def encode(self, data: Any) -> bytes: ...
    def decode(self, raw: bytes) -> Any: ...


class JsonCodec:
    """JSON in UTF-8: strings, finite numbers, booleans, None, lists and dicts.

    Tuples come back as lists, and the keys of dicts as strings.
    """

    name = "json"

    def encode(self, data: Any) -> bytes:
        """Compact JSON; NaN, infinities and other objects are refused."""
        try:
            text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            raw = text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(codec=self.name, action="encode", value=_short(data), why=error) from error
        return raw

    def decode(self, raw: bytes) -> Any:
        """The data of JSON bytes."""
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise CodecError(codec=self.name, action="decode", value=_short(raw), why=error) from error


class RawCodec:
    """Bytes as they are."""

    name = "raw"

    def encode(self, data: Any) -> bytes:
        """Accepts bytes and bytearray."""
        if not isinstance(data, (bytes, bytearray)):
            raise CodecError(codec=self.name, action="encode", value=_short(data), why="only bytes pass as they are")
        return bytes(data)

    def decode(self, raw: bytes) -> bytes:
        return raw


class MsgpackCodec:
    """MessagePack through msgspec (extra `msgpack`): faster and smaller than JSON, bytes and datetimes included."""

    name = "msgpack"

    def __init__(self) -> None:
        try:
            self._msgspec = import_module("msgspec")
        except ImportError as error:
            rule = "needs the extra: pip install 'tubes-queue[msgpack]'"
            raise InvalidOption(option="codec", value=self.name, rule=rule) from error

    def encode(self, data: Any) -> bytes:
        try:
            raw: bytes = self._msgspec.msgpack.encode(data)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(codec=self.name, action="encode", value=_short(data), why=error) from error
        return raw

    def decode(self, raw: bytes) -> Any:
        try:
            return self._msgspec.msgpack.decode(raw)
        except (ValueError, RecursionError) as error:
            raise CodecError(codec=self.name, action="decode", value=_short(raw), why=error) from error


_BY_NAME: Final[dict[str, Callable[[], Codec]]] = {"json": JsonCodec, "raw": RawCodec, "msgpack": MsgpackCodec}


def find(codec: str | Codec) -> Codec:
    """A codec by its name (`json`, `raw`, `msgpack`), or the user's own."""
    if isinstance(codec, str):
        if codec not in _BY_NAME:
            raise InvalidOption(option="codec", value=codec, rule=f"must be one of {', '.join(_BY_NAME)}, or a Codec")
        return _BY_NAME[codec]()
    if not isinstance(codec, Codec):  # pyright: ignore[reportUnnecessaryIsInstance]
        rule = "must have encode(data) -> bytes and decode(bytes) -> data"
        raise InvalidOption(option="codec", value=codec, rule=rule)
    return codec


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
