"""Which URLs and addresses may be reached: what others name must not lead into the network of whoever sends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from yarl import URL

from tubes.errors import InvalidOption

_ANY_HOST: Final = {"http://": "http", "https://": "https"}
_CONTROL: Final = re.compile(r"[\0-\x1f\x7f]")
_NAT64: Final = ip_network("64:ff9b::/96")
#: Networks that are not public, by IANA's registries of special-purpose addresses. `is_global` alone depends on the
#: patch release of Python.
_SPECIAL: Final = [
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",  # Azure's metadata service: it has a public address.
        *("::/3", "4000::/2", "8000::/1"),  # Only 2000::/3 is unicast for the Internet.
        *("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20"),
    )
]


@dataclass(frozen=True)
class _Prefix:
    scheme: str
    #: The host and the port; None: any.
    place: tuple[str | None, int | None] | None
    path: str

    def covers(self, url: URL) -> bool:
        if url.scheme != self.scheme:
            return False
        if self.place is None:
            return True
        # A path ends at a slash: /hooks is not the beginning of /hooks-of-others.
        path = self.path.rstrip("/") + "/"
        return (url.host, url.port) == self.place and (url.path + "/").startswith(path)


class Places:
    """Where requests may go.

    `allow`: what URLs begin with, as in `https://example.com/hooks`; `https://` alone: any host. None: none.
    `networks`: addresses that are allowed though they are not public, as in `10.1.0.0/16`.

    >>> places = Places(["https://example.com/hooks"])
    >>> places.check("https://example.com/hooks/1")
    URL('https://example.com/hooks/1')
    >>> places.check("https://example.com.evil.net/hooks/1")
    Traceback (most recent call last):
    tubes.errors.InvalidOption: url='https://example.com.evil.net': begins with nothing that is allowed
    """

    def __init__(self, allow: Iterable[str], networks: Iterable[str] = ()) -> None:
        self._prefixes: Final = [_prefix(text) for text in allow]
        try:
            self._networks: Final = [ip_network(text) for text in networks]
        except ValueError as error:
            rule = f"must be addresses, as in 10.1.0.0/16: {error}"
            raise InvalidOption(option="networks", value=networks, rule=rule) from None

    def check(self, text: object) -> URL:
        """The URL of a text, if it is allowed. Raises `InvalidOption`, with no more of the URL than its host."""
        url = _parsed("url", text)
        if not any(prefix.covers(url) for prefix in self._prefixes):
            raise InvalidOption(option="url", value=_shown(url), rule="begins with nothing that is allowed")
        return url

    def allows_address(self, text: str) -> bool:
        """Whether this address may be connected to: it is public, or of one of the networks."""
        address = _meant(ip_address(text))
        if any(address in network for network in self._networks):
            return True
        return address.is_global and not any(address in network for network in _SPECIAL)


def _meant(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, if it does: a packet to this goes to that."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _prefix(text: str) -> _Prefix:
    if text in _ANY_HOST:
        return _Prefix(_ANY_HOST[text], None, "/")
    url = _parsed("allow", text)
    if url.query_string or url.fragment:
        raise InvalidOption(option="allow", value=text, rule="must end with a path")
    return _Prefix(url.scheme, (url.host, url.port), url.path)


def _parsed(option: str, text: object) -> URL:
    rule = "must be a URL, as in https://example.com/hooks"
    if not isinstance(text, str) or len(text) > 2048 or not text.isprintable() or "\\" in text:
        raise InvalidOption(option=option, value="...", rule=rule)
    try:
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.host or not url.port:
            raise ValueError
    except ValueError:
        raise InvalidOption(option=option, value="...", rule=rule) from None
    if url.raw_user is not None or url.raw_password is not None:
        raise InvalidOption(option=option, value=_shown(url), rule="must not have a user or a password")
    # Some servers read a backslash as a slash, and drop what follows a semicolon.
    if any(part.partition(";")[0] == ".." for part in url.path.replace("\\", "/").split("/")):
        raise InvalidOption(option=option, value=_shown(url), rule="must not have .. in its path")
    # C programs end a path at %00, and others write it into lines of a log or a protocol.
    if _CONTROL.search(url.path):
        raise InvalidOption(option=option, value=_shown(url), rule="must not have control characters in its path")
    return url


def _shown(url: URL) -> str:
    return str(url.with_user(None).origin())
