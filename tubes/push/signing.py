"""Signs requests by version 1 of the Standard Webhooks specification."""

from __future__ import annotations

import binascii
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Final

from tubes.errors import InvalidOption

_PREFIX: Final = "whsec_"
#: Shortest and longest secret, in bytes.
_MIN_BYTES: Final = 24
_MAX_BYTES: Final = 64


class Signer:
    """Signs requests by https://www.standardwebhooks.com; libraries in many languages verify the signatures.

    `secrets`: one or several, each `whsec_` followed by the Base64 of 24 to 64 bytes. Each secret adds a signature, so
    a receiver can change from one secret to the next.

    >>> signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], now=lambda: 1614265330)
    >>> signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')["webhook-signature"]
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """

    def __init__(self, secrets: str | Iterable[str], *, now: Callable[[], float] = time.time) -> None:
        self._keys: Final = [_key(text) for text in ([secrets] if isinstance(secrets, str) else secrets)]
        self._now: Final = now

    def headers(self, id: str, body: bytes) -> dict[str, str]:
        """Return the headers for a body. `id`: the same at each attempt, so that a receiver recognizes repetitions."""
        moment = str(int(self._now()))
        headers_out = {"webhook-id": id, "webhook-timestamp": moment}
        if self._keys:
            text = f"{id}.{moment}.".encode() + body
            signed = (b64encode(hmac.digest(key, text, "sha256")).decode() for key in self._keys)
            headers_out["webhook-signature"] = " ".join(f"v1,{signature}" for signature in signed)
        return headers_out


def _key(text: str) -> bytes:
    try:
        key = b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        rule = f"must be {_PREFIX} followed by the Base64 of {_MIN_BYTES} to {_MAX_BYTES} bytes"
        raise InvalidOption(option="secret", value="...", rule=rule)
    return key
