"""Post the tasks of tubes to URLs with `tubes.push`, and run workers in the background of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from tubes.aio import AsyncQueue
from tubes.drivers.driver import check_namespace, check_tube_name
from tubes.errors import InvalidOption
from tubes.push import Sender, Webhook
from tubes.serve.namespaces import NO_NAMESPACE
from tubes.values.codecs import JsonCodec
from tubes.worker import Summary, Worker

_log: Final = logging.getLogger("tubes.serve")


class AnyJson(JsonCodec):
    """The codec of data that clients put: JSON, or any bytes."""

    @override
    def decode(self, raw: bytes) -> object:
        """Decode JSON; return the raw bytes if they are not JSON."""
        try:
            return super().decode(raw)
        except (ValueError, RecursionError):
            return raw


@dataclass(frozen=True)
class Push:
    """A tube whose tasks are posted to a URL. `namespace`: `_` for tubes without one.

    >>> Push.read("shop mail=https://example.com/mail").tube
    'mail'
    """

    namespace: str
    tube: str
    url: str

    @classmethod
    def read(cls, text: str) -> Push:
        """Parse `[NAMESPACE ]TUBE=URL`."""
        name, separator, url = text.partition("=")
        namespace, _, tube = name.rpartition(" ")
        if not separator:
            raise InvalidOption(option="push", value=name, rule="must be [NAMESPACE ]TUBE=URL")
        check_namespace("" if namespace in ("", NO_NAMESPACE) else namespace)
        return cls(namespace or NO_NAMESPACE, check_tube_name(tube), url)


@dataclass(frozen=True)
class Pushes:
    """The pushes of a service, and their options."""

    pushes: tuple[Push, ...]
    #: Non-public addresses that are allowed, see `tubes.push.Sender`.
    networks: tuple[str, ...] = ()
    #: Secrets that sign the posts; if empty, posts are not signed.
    secrets: tuple[str, ...] = ()
    #: Maximum simultaneous posts per tube in this process. If it is killed, this many tasks may be posted again.
    concurrency: int = 1
    #: Seconds within which a receiver must reply.
    timeout: float = 30.0
    #: Seconds that running posts may take when the service stops.
    grace: float = 5.0

    def __post_init__(self) -> None:
        self.webhooks()

    def webhooks(self) -> tuple[Sender, list[Webhook]]:
        """Return the sender and the handlers that post. Raise `InvalidOption` for a bad URL, address or secret."""
        allow = [push.url.partition("?")[0] for push in self.pushes]
        sender = Sender(allow, networks=self.networks, per_host=max(10, self.concurrency), timeout=self.timeout)
        return sender, [Webhook(push.url, sender=sender, secrets=self.secrets) for push in self.pushes]

    @asynccontextmanager
    async def run(self, root: AsyncQueue) -> AsyncGenerator[None]:
        """Post tasks during a block."""
        sender, webhooks = self.webhooks()
        async with sender.running(), AsyncExitStack() as stack:
            for push, webhook in zip(self.pushes, webhooks, strict=True):
                queue = await root.namespace("" if push.namespace == NO_NAMESPACE else push.namespace)
                stack.push_async_callback(queue.close)
                worker = Worker(queue, grace=self.grace)
                # The tube may be created later.
                worker._add_route(push.tube, webhook, concurrency=self.concurrency, must_exist=False)
                await stack.enter_async_context(run_worker(worker))
            yield


@asynccontextmanager
async def run_worker(worker: Worker) -> AsyncGenerator[None]:
    """Run a worker during a block; at the end, wait for its running tasks."""
    run = asyncio.ensure_future(worker.run_async())
    run.add_done_callback(_log_failure)
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait([run])


def _log_failure(run: asyncio.Task[Summary]) -> None:
    if not run.cancelled() and run.exception() is not None:
        _log.error("the worker stopped: tasks are not posted", exc_info=run.exception())
