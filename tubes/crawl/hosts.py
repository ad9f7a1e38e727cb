"""The lanes of URLs."""

from __future__ import annotations

from typing import Final
from urllib.parse import ParseResult, SplitResult

_PORTS: Final = {"http": 80, "https": 443}


def host_of(url: ParseResult | SplitResult) -> str:
    """Return the host of a URL, with the port unless it is the default port."""
    host = (url.hostname or "").removesuffix(".")  # A trailing dot only marks the name as absolute.
    if not host:
        return url.scheme
    return host if url.port in (None, _PORTS.get(url.scheme)) else f"{host}:{url.port}"
