"""Tubes whose tasks the service posts to URLs, by `tubes.push`, and how a worker runs beside the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from tubes.aio import AsyncQueue
from tubes.drivers.driver import check_namespace, check_tube_name
from tubes.errors import InvalidOption
from tubes.push import Sender, Webhook
from tubes.serve.namespaces import NONE
from tubes.values.codecs import JsonCodec
from tubes.worker import Worker

_log: Final = logging.getLogger("tubes.serve")


class AnyJson(JsonCodec):
    """Data that clients put: JSON, or else any bytes."""

    @override
    def decode(self, raw: bytes) -> Any:
        """The value of a JSON text; what is none is bytes."""
        try:
            return super().decode(raw)
        except (ValueError, RecursionError):
            return raw


@dataclass(frozen=True)
class Push:
    """The tube whose tasks are posted, and the URL. `namespace`: `_` for none.

    >>> Push.read("shop mail=https://example.com/mail").tube
    'mail'
    """

    namespace: str
    tube: str
    url: str

    @classmethod
    def read(cls, text: str) -> Push:
        """A push of its text: `[NAMESPACE ]TUBE=URL`."""
        name, found, url = text.partition("=")
        namespace, _, tube = name.rpartition(" ")
        if not found:
            raise InvalidOption(option="push", value=name, rule="must be [NAMESPACE ]TUBE=URL")
        check_namespace("" if namespace in ("", NONE) else namespace)
        return cls(namespace or NONE, check_tube_name(tube), url)


@dataclass(frozen=True)
class Pushes:
    """Which tasks are posted where, and how."""

    pushes: tuple[Push, ...]
    #: Addresses that are allowed though they are not public, see `tubes.push.Sender`.
    networks: tuple[str, ...] = ()
    #: Sign what is posted; none: there is no signature.
    secrets: tuple[str, ...] = ()
    #: How many tasks of a tube this process posts at a time. So many may be posted again if it is killed.
    concurrency: int = 1
    #: Seconds that a receiver has to reply.
    timeout: float = 30.0
    #: Seconds for which posts may go on when the service ends.
    grace: float = 5.0

    def __post_init__(self) -> None:
        self.webhooks()

    def webhooks(self) -> tuple[Sender, list[Webhook]]:
        """What posts. Raises `InvalidOption` for a bad URL, address or secret."""
        allow = [push.url.partition("?")[0] for push in self.pushes]
        sender = Sender(allow, networks=self.networks, per_host=max(10, self.concurrency), timeout=self.timeout)
        return sender, [Webhook(push.url, sender=sender, secrets=self.secrets) for push in self.pushes]

    @asynccontextmanager
    async def running(self, root: AsyncQueue) -> AsyncGenerator[None]:
        """Post tasks as long as this lasts."""
        sender, webhooks = self.webhooks()
        async with sender.running(), AsyncExitStack() as stack:
            for push, webhook in zip(self.pushes, webhooks, strict=True):
                queue = await root.namespace("" if push.namespace == NONE else push.namespace)
                stack.push_async_callback(queue.close)
                worker = Worker(queue, grace=self.grace)
                worker.on(push.tube, webhook, concurrency=self.concurrency)
                await stack.enter_async_context(working(worker))
            yield


@asynccontextmanager
async def working(worker: Worker) -> AsyncGenerator[None]:
    """Run a worker as long as this lasts; what has begun is finished."""
    run = asyncio.ensure_future(worker.run_async())
    run.add_done_callback(_report)
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait([run])


def _report(run: asyncio.Future[Any]) -> None:
    if not run.cancelled() and run.exception() is not None:
        _log.error("tasks are not posted any more", exc_info=run.exception())
