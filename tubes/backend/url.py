"""Parse and check URLs, and remove passwords from them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote_to_bytes, urlencode, urlsplit

from tubes.drivers.driver import NAMES, is_name
from tubes.drivers.options import SECOND
from tubes.errors import InvalidOption, did_you_mean

#: Schemes of the Redis backend, which is imported when it is first used.
_REDIS: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")

#: The scheme of a store in a folder.
_FILE: Final = "file:"

#: In microseconds: a shorter lease on a server cannot be renewed in time. In memory leases need no renewal.
SHORTEST_LEASE: Final = SECOND // 10

_SCHEME: Final = re.compile(rf"({'|'.join(map(re.escape, _REDIS))}|memory):(//)?", re.IGNORECASE)
# A host name or an IPv6 address, with an optional zone, and an optional port.
_HOST: Final = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])?(?::([0-9]{0,5}))?")
# The beginning of a URL, which errors show if it is a misspelled scheme.
_WORD: Final = re.compile(r"([A-Za-z+]*)(://)?")
# Schemes of other systems, which may appear in errors. Other words may be passwords that got into the wrong variable.
_OTHER_SCHEME: Final = re.compile(
    r"(valkeys?|https?|tcp|amqps?|sqs|kafka|nats|mongodb|mysql|postgres(ql)?|ftp)://", re.I
)
_HOST_ONLY: Final = re.compile(r"(localhost|[0-9]{1,3}(\.[0-9]{1,3}){3})(:[0-9]{1,5})?", re.ASCII)
_SETTING: Final = re.compile(r"[a-z_]+", re.IGNORECASE | re.ASCII)
#: Arguments of `connect` that may also be settings of a URL.
ARGUMENTS: Final = ("codec", "connect_timeout", "session_ttl")
#: Settings whose values may appear in errors, if they match `_SAFE_VALUE`.
_SAFE_SETTINGS: Final = ("prefix", "namespace", "db", "sync", "mode", *ARGUMENTS)
_SAFE_VALUE: Final = re.compile(r"[\w.:-]*")
_HIDDEN: Final = "***"
_ESCAPE_HINT: Final = "in passwords, paths and settings write %40 for @, %2F for /, %23 for #, %3F for ?"
_UNREADABLE: Final = f"cannot be read: {_ESCAPE_HINT}"


class _DefaultUrl:
    """The default value of a `url` parameter, as `help` shows it."""

    def __repr__(self) -> str:
        return "<TUBES_URL, else memory://>"


#: The default value of a `url` parameter. None is refused, because it may come from a missing setting.
DEFAULT_URL: Final[Any] = _DefaultUrl()


def url_of_environment() -> str | None:
    """Return the value of `TUBES_URL`; None if it is unset or empty."""
    return os.environ.get("TUBES_URL") or None


class Place(NamedTuple):
    """A parsed URL."""

    scheme: str
    #: Hosts and ports, in the order of the URL.
    hosts: tuple[tuple[str, int | None], ...]
    path: str
    settings: dict[str, list[str]]
    #: The URL without users and passwords, for errors and logs.
    redacted: str

    def setting(self, name: str) -> str | None:
        """Return the value of a setting: the last one if there are several; None if it is missing."""
        return self.settings[name][-1] if name in self.settings else None

    def check_settings(self, known: Collection[str], ignored: Collection[str] = ()) -> None:
        """Raise `InvalidOption` for an unknown setting; the error lists the known ones."""
        for name in self.settings:
            if name not in known and name not in ignored:
                names = f"{', '.join(sorted(known))}{did_you_mean(name, known)}"
                rule = f"has an unknown setting {name!r}: known settings are {names}"
                raise InvalidOption(option="url", value=self.redacted, rule=rule)


def remove_settings(url: str, place: Place, settings: Collection[str]) -> str:
    if place.settings.keys().isdisjoint(settings):
        return url
    remaining = {name: value for name, value in place.settings.items() if name not in settings}
    return url.partition("?")[0] + (f"?{urlencode(remaining, doseq=True)}" if remaining else "")


def add_namespace(url: str, namespace: str) -> str:
    """Add a namespace to a URL; '': return the URL unchanged."""
    if not namespace:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'namespace': namespace})}"


def read(url: str, *, servers_only: bool = False) -> Place:
    """Parse a URL. Raises `InvalidOption`, which quotes only the scheme.

    `servers_only`: errors name only the schemes of servers.

    If a password contains an unescaped `/ ? # @`, its second half looks like another part of the URL. So `@` is allowed
    only before the hosts, and each part must match its rule.
    """
    found = _SCHEME.match(url)
    redacted = f"{found[0].lower()}{_HIDDEN}" if found and found[2] else _HIDDEN
    # urlsplit silently removes newlines, tabs and outer spaces, so that two different URLs would become equal.
    if not url.isprintable() or " " in url:
        raise InvalidOption(option="url", value=redacted, rule="must be printable, without spaces")
    if url[:5].lower() == _FILE:
        return _read_file(url)
    if not found:
        servers = ", ".join(f"{name}://" for name in _REDIS)
        others = "" if servers_only else "be memory://, memory://name or file:folder, or "
        rule = f"must {others}begin with one of {servers}"
        if _HOST_ONLY.fullmatch(url):
            raise InvalidOption(option="url", value=url, rule=f"{rule}; did you mean 'redis://{url}'?")
        word: Any = _WORD.match(url)
        rest = url[word.end() :].lstrip("/")
        if word[1].lower() in ("redis", "rediss") and _HOST_ONLY.fullmatch(rest):  # `redis//localhost`
            raise InvalidOption(option="url", value=url, rule=f"{rule}; did you mean '{word[1].lower()}://{rest}'?")
        if hint := did_you_mean(word[1].lower(), (*_REDIS, *(() if servers_only else ("memory", "file")))):
            raise InvalidOption(
                option="url", value=f"{word[0]}{_HIDDEN if url[word.end() :] else ''}", rule=rule + hint
            )
        raise InvalidOption(option="url", value=_redact_unknown(url), rule=rule)
    if not found[2]:
        scheme = found[0].lower()
        raise InvalidOption(option="url", value=redacted, rule=f"must have two slashes after {scheme!r}: {scheme}//")
    parts = _split(url)
    if parts is None:
        raise InvalidOption(option="url", value=redacted, rule=_UNREADABLE)
    broken_rule = _find_broken_rule(parts)
    if broken_rule:
        raise InvalidOption(option="url", value=redacted, rule=broken_rule)
    _, at, places = parts.netloc.rpartition("@")
    hosts: list[tuple[str, int | None]] = []
    for place in places.split(",") if places else ():
        host = _HOST.fullmatch(place)
        if host is None or int(host[2] or 0) > 65535:
            rule = f"must have hosts such as host:6379, with a port up to 65535; {_ESCAPE_HINT}"
            raise InvalidOption(option="url", value=redacted, rule=rule)
        hosts.append((host[1] or "", int(host[2]) if host[2] else None))
    settings = _parse_settings(parts.query, redacted)
    text = f"{parts.scheme}://{at and _HIDDEN}{at}{places}{parts.path}"
    return Place(parts.scheme, tuple(hosts), parts.path, settings, _append_settings(text, settings))


def _read_file(url: str) -> Place:
    parts = _split(url)
    if parts is None or parts.netloc or not parts.path:
        rule = f"must name a folder, as in file:jobs or file:///var/lib/jobs; {_ESCAPE_HINT}"
        # The text before an @ may be a password that got into the wrong URL.
        raise InvalidOption(option="url", value=f"{_FILE}{_HIDDEN}" if "@" in url else url.partition("?")[0], rule=rule)
    settings = _parse_settings(parts.query, f"{_FILE}{parts.path}")
    text = _append_settings(f"{_FILE}{parts.path}", settings)
    try:
        path = os.path.expanduser(unquote_to_bytes(parts.path).decode())
    except UnicodeDecodeError:
        raise InvalidOption(option="url", value=text, rule="its path must be UTF-8 after %XX is decoded") from None
    if "\0" in path:
        raise InvalidOption(option="url", value=text, rule="its path must not contain %00")
    if path.startswith("~"):  # `expanduser` has left it.
        rule = f"its path begins with ~ and an unknown user: write {_FILE}./~ for a folder of this name"
        raise InvalidOption(option="url", value=text, rule=rule)
    return Place("file", (), path, settings, text)


def _parse_settings(query: str, redacted: str) -> dict[str, list[str]]:
    settings = parse_qs(query, keep_blank_values=True)
    blank = any("=" not in setting for setting in query.split("&") if setting)
    if blank or not all(map(_SETTING.fullmatch, settings)):
        raise InvalidOption(option="url", value=redacted, rule=_UNREADABLE)
    return settings


def _append_settings(place: str, settings: dict[str, list[str]]) -> str:
    pairs = "&".join(
        f"{name}={value if name in _SAFE_SETTINGS and _SAFE_VALUE.fullmatch(value) else _HIDDEN}"
        for name, values in settings.items()
        for value in values
    )
    return f"{place}?{pairs}" if pairs else place


def _redact_unknown(url: str) -> str:
    """Return the part that may appear in errors, for a text without a known scheme."""
    other = _OTHER_SCHEME.match(url)
    return f"{other[0]}{_HIDDEN}" if other else _HIDDEN


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
    except ValueError:  # Do not raise here: the error may quote the password, and would be the context of ours.
        return None
    # urlsplit removes a ? or # at the end.
    return None if "#" in url or "@" in parts.path + parts.query else parts


def _find_broken_rule(parts: SplitResult) -> str | None:
    """Return the rule of its scheme that a URL breaks, or None."""
    if parts.scheme == "unix":
        return "must be unix:///path, or unix://user:password@/path" if parts.netloc.rpartition("@")[2] else None
    if parts.scheme == "memory":
        if parts.path or "@" in parts.netloc:
            return "memory:// takes a name and settings only"
        return None if not parts.netloc or is_name(parts.netloc) else f"memory:// takes {NAMES}"
    if parts.scheme == "redis+sentinel":
        service = re.fullmatch(r"/([^/]+)(/[0-9]{0,9})?", parts.path)
        return None if service else "must name the service: redis+sentinel://host:26379/service or …/service/db"
    if not re.fullmatch(r"/?[0-9]*", parts.path):
        return f"may have only a database number after the host and port, as in host:6379/0; {_ESCAPE_HINT}"
    return None


def redact_url(url: str) -> str:
    """Return a URL without users and passwords; only the scheme if the URL is invalid."""
    try:
        return read(url).redacted
    except InvalidOption as error:
        return str(error.facts["value"])
