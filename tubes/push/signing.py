"""Signatures of the Standard Webhooks specification, version 1."""

from __future__ import annotations

import binascii
import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Final

from tubes.errors import InvalidOption

_PREFIX: Final = "whsec_"
#: Bytes of a secret.
_LEAST: Final = 24
_MOST: Final = 64


class Signer:
    """Signs what is posted, as https://www.standardwebhooks.com says; libraries of many languages check it.

    `secrets`: of the form `whsec_` and Base64 of 24 to 64 bytes. With two of them there are two signatures, so that a
    receiver can change from one to the other.

    >>> signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], now=lambda: 1614265330)
    >>> signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')["webhook-signature"]
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """

    def __init__(self, secrets: str | Iterable[str], *, now: Callable[[], float] = time.time) -> None:
        self._keys: Final = [_key(text) for text in ([secrets] if isinstance(secrets, str) else secrets)]
        self._now: Final = now

    def headers(self, id: str, body: bytes) -> dict[str, str]:
        """The headers of a body. `id`: the same however often it is posted, so that a receiver knows it again."""
        moment = str(int(self._now()))
        found = {"webhook-id": id, "webhook-timestamp": moment}
        if self._keys:
            text = f"{id}.{moment}.".encode() + body
            signed = (b64encode(hmac.digest(key, text, "sha256")).decode() for key in self._keys)
            found["webhook-signature"] = " ".join(f"v1,{each}" for each in signed)
        return found


def _key(text: str) -> bytes:
    try:
        key = b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _LEAST <= len(key) <= _MOST:
        rule = f"must be {_PREFIX} and Base64 of {_LEAST} to {_MOST} bytes"
        raise InvalidOption(option="secret", value="...", rule=rule)
    return key
