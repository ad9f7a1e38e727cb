"""The handler that posts tasks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from tubes.aio import AsyncTask
from tubes.backend.port import port_of
from tubes.drivers.backoff import Backoff
from tubes.push.sender import Reply, Sender, SendFailed
from tubes.push.signing import Signer
from tubes.values.codecs import JsonCodec
from tubes.worker import Bury, Retry, retry_after

#: The backoff for tubes without one, so that a failing receiver is not called in a tight loop.
_BACKOFF: Final = Backoff(5, factor=3, cap=3600, jitter=0.2)
#: Default delay for a busy receiver, in seconds.
_BUSY_DELAY: Final = 10.0
#: A valid value for a request header.
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e ]{1,512}")
_to_json: Final = JsonCodec().encode


class Webhook:
    """Posts tasks to a URL: a handler for `Worker.on`.

    `url`: must be allowed by the sender.
    `sender`: sends the requests; `worker.lifespan(sender.running)` opens it.
    `secrets`: sign the requests, see `Signer`. Without secrets the requests are not signed.

    The body is the task's data: bytes unchanged, other data as JSON. A 2xx reply acks the task. 429 and 503 release it
    without counting the attempt, with the delay of `Retry-After`: 10 seconds by default, an hour at most. 410 buries
    it. Any other reply, or no reply in time, is a failed attempt: the task is retried by the tube's `backoff`, or after
    5, 15, 45... seconds if the tube has none, and is buried after its `max_attempts`.

    Delivery is at least once: if a worker dies after the reply, the receiver gets the task again, with the same
    `webhook-id`.

    >>> sender = Sender(["https://example.com/"])
    >>> webhook = Webhook("https://example.com/orders", sender=sender, secrets="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    """

    def __init__(self, url: str, *, sender: Sender, secrets: str | Iterable[str] = ()) -> None:
        sender.places.check(url)
        self._url: Final = url
        self._sender: Final = sender
        self._signer: Final = Signer(secrets)

    async def __call__(self, task: AsyncTask) -> None:
        """Post a task. Raises `Retry` or `Bury` if it was not delivered."""
        data = task.data
        is_raw = isinstance(data, bytes)
        body: bytes = data if is_raw else _to_json(data)
        headers = {"content-type": "application/octet-stream" if is_raw else "application/json"}
        for name in ("traceparent", "tracestate"):
            if _HEADER_VALUE.fullmatch(task.context.get(name, "")):
                headers[name] = task.context[name]
        headers |= self._signer.headers(message_id(task), body)
        try:
            reply = await self._sender.post(self._url, body, headers)
        except SendFailed as error:
            raise make_retry(task, str(error)) from None
        check(task, reply)


def check(task: AsyncTask, reply: Reply) -> None:
    """Raise `Retry` or `Bury` unless the status of the reply is 2xx."""
    if reply.status in (429, 503):
        raise make_busy_retry(f"the reply was {reply.status}", reply)
    if reply.status == 410:
        raise Bury("the reply was 410: the receiver is gone")
    if not 200 <= reply.status < 300:
        raise make_retry(task, f"the reply was {reply.status}")


def make_busy_retry(reason: str, reply: Reply) -> Retry:
    """Return the error for a busy receiver. The attempt does not count."""
    delay = retry_after(reply.headers.get("retry-after"))
    return Retry(_BUSY_DELAY if delay is None else delay, reason, counts=False)


def make_retry(task: AsyncTask, reason: str) -> Retry:
    has_own = task._tube.options.get("backoff")
    return Retry(None if has_own else _BACKOFF.delay(task.attempts, task.id), reason)


def message_id(task: AsyncTask) -> str:
    """Return the `webhook-id` of a task: the same in all attempts, and unique among all tasks of its store."""
    text = f"{port_of(task._tube).connection.namespace}\n{task.tube}\n{task.id}\n{task.created}"
    return f"msg_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
