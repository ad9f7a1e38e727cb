"""Leases as clients get them: signed, since a lease alone can be guessed in parts."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Final

from tubes.errors import InvalidOption
from tubes.values.lease import Lease

#: Characters of a signature: 96 bits.
_SIGNED: Final = 16


class Leases:
    """Signs leases with a secret; None: there are no tokens, and so nothing to protect."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret: Final = secret

    def given(self, namespace: str, lease: str) -> str:
        """The lease as a client gets it."""
        return lease if self._secret is None else f"{lease}.{self._sign(namespace, lease)}"

    def read(self, namespace: str, text: str) -> Lease:
        """Read a lease that a client sends. Raises `InvalidOption` unless the service gave it to a client."""
        lease = text.partition(".")[0]
        given = self.given(namespace, lease)
        with suppress(InvalidOption):
            if hmac.compare_digest(text.encode(errors="replace"), given.encode(errors="replace")):
                return Lease(lease)
        raise InvalidOption(option="lease", value=text, rule="is not a lease of this namespace, or was cut or damaged")

    def _sign(self, namespace: str, lease: str) -> str:
        assert self._secret is not None
        text = f"{namespace}\n{lease}".encode(errors="replace")
        return urlsafe_b64encode(hmac.digest(self._secret, text, "sha256"))[:_SIGNED].decode()
