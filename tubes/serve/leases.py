"""Leases as clients get them: signed, since a lease alone can be guessed in parts."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from typing import Final

from tubes.errors import InvalidOption
from tubes.values.lease import Lease

#: Characters of a signature: 96 bits.
_SIGNED: Final = 16


class Leases:
    """Signs leases with a secret; None: there are no tokens, and so nothing to protect."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret: Final = secret

    def given(self, namespace: str, lease: Lease) -> str:
        """The lease as a client gets it."""
        return lease if self._secret is None else f"{lease}.{self._sign(namespace, lease)}"

    def read(self, namespace: str, text: object) -> Lease:
        """The lease that a client gives. Raises `InvalidOption` for one that was not given to a client here."""
        if not isinstance(text, str):
            raise InvalidOption(option="lease", value=text, rule="must be a string")
        lease, _, signature = text.partition(".")
        if self._secret is None:
            return Lease(text)
        if not hmac.compare_digest(signature.encode(errors="replace"), self._sign(namespace, lease).encode()):
            raise InvalidOption(option="lease", value=text, rule="is no lease of this namespace, or was cut or damaged")
        return Lease(lease)

    def _sign(self, namespace: str, lease: str) -> str:
        assert self._secret is not None
        text = f"{namespace}\n{lease}".encode(errors="replace")
        return urlsafe_b64encode(hmac.digest(self._secret, text, "sha256"))[:_SIGNED].decode()
