"""Tokens, their grants, and the file that stores them. Only a hash of each token is stored."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tubes.errors import Facts, InvalidOption
from tubes.serve.rates import Rate
from tubes.values.lease import Lease

#: Rights of a grant. `put`: put and call. `take`: take tasks, and end or renew these takes. `look`: see tubes, tasks
#: and events. `manage`: create, alter, pause and drop tubes, and change tasks that other clients hold. `admin`: manage
#: tokens.
TUBE_RIGHTS: Final = ("put", "take", "look", "manage")
RIGHTS: Final = (*TUBE_RIGHTS, "admin")
ALL_RIGHTS: Final = frozenset(RIGHTS)
#: Names of rates: uses of each right, and bytes put.
RATES: Final = (*RIGHTS, "bytes")
#: Names of limits: bytes of a `body`, waiting `tasks` in a tube into which the token puts, and simultaneous `requests`
#: and `sessions`.
LIMITS: Final = ("body", "tasks", "requests", "sessions")
_PREFIX: Final = "tubes"
#: Minimum seconds between two checks of the file.
_CHECK_INTERVAL: Final = 0.4
_log: Final = logging.getLogger("tubes.serve")
#: Maximum characters of a description, which is shown in terminals.
_MAX_DESCRIPTION: Final = 200


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on the tubes whose names match; `*` and `?` match as in a shell."""

    rights: frozenset[str]
    namespace: str = "*"
    tube: str = "*"

    @classmethod
    def read(cls, text: str) -> Grant:
        """Parse a grant: rights, and optionally a namespace and a tube.

        >>> Grant.read("put,take shop mail*").tube
        'mail*'
        """
        words = text.split()
        rights = words[0].split(",") if words else []
        if not 1 <= len(words) <= 3 or not set(rights) <= set(RIGHTS):
            rule = f"must be RIGHTS [NAMESPACE [TUBE]], where RIGHTS are some of {','.join(RIGHTS)}"
            raise InvalidOption(option="grant", value=text, rule=rule)
        return cls(frozenset(rights), *words[1:])

    def __str__(self) -> str:
        return f"{','.join(right for right in RIGHTS if right in self.rights)} {self.namespace} {self.tube}"


@dataclass(frozen=True)
class Token:
    """A token and its grants. `expires`: seconds since the epoch; None: never."""

    id: str
    grants: tuple[Grant, ...]
    description: str = ""
    created: float = 0.0
    expires: float | None = None
    #: Rate limits by the names in `RATES`.
    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate])
    #: Limits by the names in `LIMITS`.
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    hash: str = field(default="", repr=False)

    def restrict(self, rights: frozenset[str]) -> Token:
        """Return this token with these rights at most."""
        grants = (replace(grant, rights=grant.rights & rights) for grant in self.grants)
        return replace(self, grants=tuple(grant for grant in grants if grant.rights))

    def may(self, right: str, namespace: str, tube: str) -> bool:
        """True if a grant gives this right on a tube. Only what a grant names is allowed."""
        return any(
            right in grant.rights and fnmatchcase(namespace, grant.namespace) and fnmatchcase(tube, grant.tube)
            for grant in self.grants
        )

    def patterns(self, right: str, namespace: str) -> list[str]:
        """Return the patterns of the tubes of a namespace on which a grant gives this right."""
        return [
            grant.tube for grant in self.grants if right in grant.rights and fnmatchcase(namespace, grant.namespace)
        ]

    def may_somewhere(self, right: str, namespace: str) -> bool:
        """True if a grant gives this right on some tubes of a namespace."""
        return bool(self.patterns(right, namespace))


#: The token of all requests to a service without tokens, which listens on loopback only.
ANONYMOUS: Final = Token("", (Grant(ALL_RIGHTS),))


class Tokens:
    """The tokens in a file. A change of the file takes effect within a second, in all processes.

    `path`: the file. `create` makes it if it is missing; only its owner may read it.
    """

    def __init__(self, path: str | os.PathLike[str], *, now: Callable[[], float] = time.time) -> None:
        self.path: Final = Path(path)
        self._now: Final = now
        self._rights = ALL_RIGHTS
        self._tokens: dict[str, Token] = {}
        self._secret = b""
        self._stamp: tuple[int, int, int] | None = None
        self._checked_at = 0.0
        self._is_readable = True

    @property
    def secret(self) -> bytes:
        """The key that signs leases."""
        self._refresh()
        return self._secret

    def begin(self) -> None:
        """Create the file, without tokens."""
        with self._edit():
            pass

    def restrict(self, rights: frozenset[str]) -> Tokens:
        """Return the tokens of the same file, each with these rights at most."""
        tokens = Tokens(self.path, now=self._now)
        tokens._rights = rights
        return tokens

    def find(self, text: str) -> Token | None:
        """Return the token with this text; None if it does not exist or has expired."""
        token = self._find_valid(id_of(text))
        return token if token is not None and hmac.compare_digest(token.hash, _hash(text)) else None

    def is_valid(self, token: Token) -> bool:
        """True if a token from `find` still exists with the same grants and has not expired."""
        token_now = self._find_valid(token.id)
        return token_now is not None and (token_now.grants, token_now.hash) == (token.grants, token.hash)

    def _find_valid(self, id: str) -> Token | None:
        # A new token is valid at once, so an unknown one looks at the file, too, unless it could not be read just now.
        if (id not in self._tokens and self._is_readable) or time.monotonic() - self._checked_at > _CHECK_INTERVAL:
            self._is_readable = False
            try:
                self._refresh()
                self._is_readable = True
            except (InvalidOption, OSError) as error:
                # The file may be half written: keep the known tokens until it can be read.
                _log.error("%s", error)
        token = self._tokens.get(id)
        if token is None or (token.expires is not None and token.expires <= self._now()):
            return None
        return token if self._rights >= ALL_RIGHTS else token.restrict(self._rights)

    def all(self) -> list[Token]:
        """Return all tokens, including expired ones, oldest first."""
        self._refresh()
        return sorted(self._tokens.values(), key=lambda token: (token.created, token.id))

    def create(
        self,
        grants: Iterable[Grant],
        description: str = "",
        ttl: float | None = None,
        text: str | None = None,
        rates: Mapping[str, Rate] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[Token, str]:
        """Add a token; return it and its text, which is not stored.

        `rates`: rate limits by the names in `RATES`. `limits`: limits by the names in `LIMITS`.
        `ttl`: seconds until it expires. `text`: at least 20 characters; None: 256 random bits.
        """
        if text is None:
            text = f"{_PREFIX}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
        elif len(text) < 20 or not text.isascii() or not text.isprintable():
            raise InvalidOption(option="token", value="...", rule="must be at least 20 printable ASCII characters")
        if len(description) > _MAX_DESCRIPTION or not description.isprintable():
            rule = f"must be at most {_MAX_DESCRIPTION} printable characters"
            raise InvalidOption(option="description", value=description[:80], rule=rule)
        for option, names, allowed in (("rate", rates, RATES), ("limit", limits, LIMITS)):
            for name in names or ():
                if name not in allowed:
                    raise InvalidOption(option=option, value=name, rule=f"must be one of {', '.join(allowed)}")
        now = self._now()
        expires = None if ttl is None else now + ttl
        token = Token(id_of(text), tuple(grants), description, now, expires, rates or {}, limits or {}, _hash(text))
        with self._edit() as tokens:
            if token.id in tokens:
                raise InvalidOption(option="token", value=token.id, rule="exists already")
            tokens[token.id] = token
        return token, text

    def set_rates(self, id: str, rates: Mapping[str, Rate]) -> bool:
        """Replace the rates of a token; return True if it exists."""
        with self._edit() as tokens:
            if id in tokens:
                tokens[id] = replace(tokens[id], rates=rates)
            return id in tokens

    def revoke(self, id: str) -> bool:
        """Remove a token; return True if it existed."""
        with self._edit() as tokens:
            return tokens.pop(id, None) is not None

    def _refresh(self) -> None:
        """Read the file if it has changed."""
        self._checked_at = time.monotonic()
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._tokens, self._stamp = {}, None
            return
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp == self._stamp:
            return
        try:
            stored = json.loads(self.path.read_text())
            tokens = [_parse_token(id, facts) for id, facts in stored["tokens"].items()]
            self._secret = bytes.fromhex(stored["secret"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            rule = f"is not a token file: {type(error).__name__}"
            raise InvalidOption(option="tokens", value=str(self.path), rule=rule) from None
        self._tokens, self._stamp = {token.id: token for token in tokens}, stamp

    @contextmanager
    def _edit(self) -> Generator[dict[str, Token]]:
        """Yield the tokens for changes, to one process at a time. A reader sees the old file or the new one."""
        with open(f"{self.path}.lock", "a", opener=_open_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._refresh()
            tokens = dict(self._tokens)
            yield tokens
            secret = self._secret or secrets.token_bytes(32)
            stored = {"secret": secret.hex(), "tokens": {token.id: _token_json(token) for token in tokens.values()}}
            new = f"{self.path}.new"
            with open(new, "w", opener=_open_private) as file:
                json.dump(stored, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
            self._refresh()


def id_of(text: str) -> str:
    """Return the id of a token, which is not secret: the id in its text, or a prefix of its hash."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _PREFIX and parts[1].isalnum() else f"h{_hash(text)[:12]}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _token_json(token: Token) -> Facts:
    facts = asdict(replace(token, grants=(), rates={}, limits=dict(token.limits)))
    del facts["id"]
    rates = {right: str(rate) for right, rate in token.rates.items()}
    return facts | {"grants": [str(grant) for grant in token.grants], "rates": rates}


def _parse_token(id: str, facts: Facts) -> Token:
    grants: Any = tuple(map(Grant.read, facts.pop("grants")))
    rates: Any = {right: Rate.read(text) for right, text in facts.pop("rates", {}).items()}
    return Token(id, grants, rates=rates, **facts)


#: Characters of a signature, 96 bits.
_SIGNATURE: Final = 16


class Leases:
    """Sign and check leases. `secret`: None without tokens, where leases need no signature."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret: Final = secret

    def sign(self, namespace: str, lease: str) -> str:
        if self._secret is None:
            return lease
        text = f"{namespace}\n{lease}".encode(errors="replace")
        return f"{lease}.{urlsafe_b64encode(hmac.digest(self._secret, text, 'sha256'))[:_SIGNATURE].decode()}"

    def read(self, namespace: str, text: str) -> Lease:
        """Read a lease that a client sends. Raise `InvalidOption` unless this service signed it."""
        lease = text.partition(".")[0]
        signed = self.sign(namespace, lease)
        with suppress(InvalidOption):
            if hmac.compare_digest(text.encode(errors="replace"), signed.encode(errors="replace")):
                return Lease(lease)
        raise InvalidOption(option="lease", value=text, rule="is not a lease of this namespace, or was cut or damaged")
