"""Decides which URLs and addresses are allowed: URLs named by others must not reach the sender's internal network."""

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
#: Networks that are not public, from IANA's registries of special-purpose addresses. The result of `is_global` depends
#: on the patch release of Python.
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
        # Compare whole segments: the prefix /hooks must not match /hooks-of-others.
        path = self.path.rstrip("/") + "/"
        return (url.host, url.port) == self.place and (url.path + "/").startswith(path)


class Places:
    """The URLs and addresses that requests may reach.

    `allow`: prefixes of allowed URLs, such as `https://example.com/hooks`; `https://` alone allows any host. Without
    prefixes no URL is allowed.
    `networks`: networks that are allowed although they are not public, such as `10.1.0.0/16`.

    >>> places = Places(["https://example.com/hooks"])
    >>> places.check("https://example.com/hooks/1")
    URL('https://example.com/hooks/1')
    >>> places.check("https://example.com.evil.net/hooks/1")
    Traceback (most recent call last):
    tubes.errors.InvalidOption: url='https://example.com.evil.net': must begin with an allowed prefix
    """

    def __init__(self, allow: Iterable[str], networks: Iterable[str] = ()) -> None:
        self._prefixes: Final = [_parse_prefix(text) for text in allow]
        try:
            self._networks: Final = [ip_network(text) for text in networks]
        except ValueError as error:
            rule = f"must be networks such as 10.1.0.0/16: {error}"
            raise InvalidOption(option="networks", value=networks, rule=rule) from None

    def check(self, text: object) -> URL:
        """Return the URL if it is allowed. Raises `InvalidOption`, whose message contains only the host of the URL."""
        url = _parse("url", text)
        if not any(prefix.covers(url) for prefix in self._prefixes):
            raise InvalidOption(option="url", value=_origin(url), rule="must begin with an allowed prefix")
        return url

    def allows_address(self, text: str) -> bool:
        """Return True if the address is public or belongs to one of the allowed networks."""
        address = _embedded_ipv4(ip_address(text))
        if any(address in network for network in self._networks):
            return True
        return address.is_global and not any(address in network for network in _SPECIAL)


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds, because packets go there; else the address itself."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _parse_prefix(text: str) -> _Prefix:
    if text in _ANY_HOST:
        return _Prefix(_ANY_HOST[text], None, "/")
    url = _parse("allow", text)
    if url.query_string or url.fragment:
        raise InvalidOption(option="allow", value=text, rule="must end with a path")
    return _Prefix(url.scheme, (url.host, url.port), url.path)


def _parse(option: str, text: object) -> URL:
    rule = "must be a URL such as https://example.com/hooks"
    if not isinstance(text, str) or len(text) > 2048 or not text.isprintable() or "\\" in text:
        raise InvalidOption(option=option, value="...", rule=rule)
    try:
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.host or not url.port:
            raise ValueError
    except ValueError:
        raise InvalidOption(option=option, value="...", rule=rule) from None
    if url.raw_user is not None or url.raw_password is not None:
        raise InvalidOption(option=option, value=_origin(url), rule="must not have a user or a password")
    # Some servers treat a backslash as a slash, and ignore the part of a segment after a semicolon.
    if any(part.partition(";")[0] == ".." for part in url.path.replace("\\", "/").split("/")):
        raise InvalidOption(option=option, value=_origin(url), rule="must not have .. in its path")
    # A NUL ends the path in C programs, and line breaks could inject lines into logs or protocols.
    if _CONTROL.search(url.path):
        raise InvalidOption(option=option, value=_origin(url), rule="must not have control characters in its path")
    return url


def _origin(url: URL) -> str:
    return str(url.with_user(None).origin())
