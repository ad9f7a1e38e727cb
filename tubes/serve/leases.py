"""Sign leases for clients, since parts of an unsigned lease can be guessed."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Final

from tubes.errors import InvalidOption
from tubes.values.lease import Lease

#: Characters of a signature, 96 bits.
_SIGNATURE: Final = 16


class Leases:
    """Sign and check leases. `secret`: None without tokens, where leases need no signature."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret: Final = secret

    def sign(self, namespace: str, lease: str) -> str:
        """Return the signed lease for a client."""
        return lease if self._secret is None else f"{lease}.{self._sign(namespace, lease)}"

    def read(self, namespace: str, text: str) -> Lease:
        """Read a lease that a client sends. Raise `InvalidOption` unless this service signed it."""
        lease = text.partition(".")[0]
        signed = self.sign(namespace, lease)
        with suppress(InvalidOption):
            if hmac.compare_digest(text.encode(errors="replace"), signed.encode(errors="replace")):
                return Lease(lease)
        raise InvalidOption(option="lease", value=text, rule="is not a lease of this namespace, or was cut or damaged")

    def _sign(self, namespace: str, lease: str) -> str:
        assert self._secret is not None
        text = f"{namespace}\n{lease}".encode(errors="replace")
        return urlsafe_b64encode(hmac.digest(self._secret, text, "sha256"))[:_SIGNATURE].decode()
