"""The handler that posts tasks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

from tubes.aio import AsyncTask
from tubes.drivers.backoff import Backoff
from tubes.push.sender import Reply, Sender, SendFailed
from tubes.push.signing import Signer
from tubes.values.codecs import JsonCodec
from tubes.worker import Bury, Retry

#: Of tubes that have no backoff of their own: a receiver that fails must not be called again and again.
_BACKOFF: Final = Backoff(5, factor=3, cap=3600, jitter=0.2)
#: Seconds to wait for a receiver that is too busy, and the longest time that it may ask for.
_BUSY: Final = 10.0
_LONGEST: Final = 3600.0
#: What the header of a request may be.
_PLAIN: Final = re.compile(r"[\x21-\x7e ]{1,512}")
_to_json: Final = JsonCodec().encode


class Webhook:
    """Posts tasks to a URL: a handler for `Worker.on`.

    `url`: must be one that the sender allows.
    `sender`: posts; `worker.lifespan(sender.running)` opens it.
    `secrets`: sign what is posted, see `Signer`; none: there is no signature.

    The body is the task's data: bytes as they are, all else as JSON. A reply of 2xx acks the task. 429 and 503 give it
    back without an attempt, for as long as `Retry-After` says, 10 seconds if it says nothing, an hour at most. 410
    buries it. Any other reply, or none in time, is a failed attempt: the task comes again by the tube's `backoff`, or
    after 5, 15, 45... seconds where the tube has none, and is buried after its `max_attempts`.

    A task is posted at least once: a receiver may get it again, if a worker dies after the reply. `webhook-id` is the
    same then.

    >>> sender = Sender(["https://example.com/"])
    >>> webhook = Webhook("https://example.com/orders", sender=sender, secrets="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    """

    def __init__(self, url: str, *, sender: Sender, secrets: str | Iterable[str] = ()) -> None:
        sender.places.check(url)
        self._url: Final = url
        self._sender: Final = sender
        self._signer: Final = Signer(secrets)

    async def __call__(self, task: AsyncTask[Any]) -> None:
        """Post a task. Raises what says to a worker that it failed."""
        data = task.data
        is_raw = isinstance(data, bytes)
        body: bytes = data if is_raw else _to_json(data)
        headers = {"content-type": "application/octet-stream" if is_raw else "application/json"}
        for name in ("traceparent", "tracestate"):
            if _PLAIN.fullmatch(task.context.get(name, "")):
                headers[name] = task.context[name]
        headers |= self._signer.headers(message_id(task), body)
        try:
            reply = await self._sender.post(self._url, body, headers)
        except SendFailed as error:
            raise failed(task, str(error)) from None
        check(task, reply)


def check(task: AsyncTask[Any], reply: Reply) -> None:
    """Raise what a status means for a task; 2xx means that it is done."""
    if reply.status in (429, 503):
        raise busy(f"the reply was {reply.status}", reply)
    if reply.status == 410:
        raise Bury("the reply was 410: the receiver wants no more")
    if not 200 <= reply.status < 300:
        raise failed(task, f"the reply was {reply.status}")


def busy(why: str, reply: Reply) -> Retry:
    """The receiver is too busy: this was no attempt."""
    return Retry(retry_after(reply, _BUSY), why, counts=False)


def retry_after(reply: Reply, default: float) -> float:
    """The seconds in the header `Retry-After`, an hour at most."""
    text = reply.headers.get("retry-after", "")
    return min(float(text), _LONGEST) if re.fullmatch("[0-9]{1,9}", text) else default


def failed(task: AsyncTask[Any], why: str) -> Retry:
    """An attempt has failed."""
    has_own = task._tube._port.shared.options.get("backoff")
    return Retry(None if has_own else _BACKOFF.delay(task.attempts, task.id), why)


def message_id(task: AsyncTask[Any]) -> str:
    """The `webhook-id` of a task: the same in all attempts, and different from that of any other task of its store."""
    text = f"{task._tube._port.connection.store.namespace}\n{task.tube}\n{task.id}\n{task.created}"
    return f"msg_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
