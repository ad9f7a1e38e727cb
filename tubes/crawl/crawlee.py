"""A request manager for Crawlee that stores requests as tasks in a tube: polite over all processes.

    tube = await queue.create_tube("pages", "utubettl", interval=1, interval_from="ack", key_ttl=86_400)
    crawler = HttpCrawler(request_manager=TubeRequestManager(tube), http_client=ImpitHttpClient(follow_redirects=False))

Crawlee reports 429 and Crawl-delay only to a `ThrottlingRequestManager`, so this class is a subclass. It overrides all
public methods.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from base64 import b64decode, b64encode, b85encode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256
from time import monotonic, time
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import tubes
from tubes.backend.port import port_of
from tubes.crawl.hosts import host_of
from tubes.drivers.options import MAX_PRI
from tubes.errors import Facts, excerpt, needs
from tubes.worker.delays import limit_delay, retry_after
from tubes.worker.outcomes import reason_of

with needs("tubes.crawl.crawlee", "crawlee"):
    from crawlee import Request
    from crawlee.crawlers import BasicCrawler
    from crawlee.request_loaders import ThrottlingRequestManager
    from crawlee.storage_clients.models import ProcessedRequest

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")
# Seconds until the next attempt after a lost connection.
_PAUSE: Final = 1.0
# Timeout of a fetch in seconds. Crawlee ends a crawl if a fetch takes minutes.
_FETCH_TIMEOUT: Final = 30.0
# The longest Retry-After that is read, in seconds. Other request managers have no limit.
_MAX_RETRY_AFTER: Final = 1e9


class TubeRequestManager(ThrottlingRequestManager[Any]):
    """Requests of a crawl in a tube, with one lane per host.

    `tube`: a tube with lanes, such as a `utubettl` with an `interval`. With `interval_from="ack"` the interval begins
    when a request has been handled; `key_ttl` is the time for which done pages are remembered.
    `block`: seconds without requests to a host after a 429 without Retry-After. Neither this nor a Retry-After or a
    Crawl-delay is longer than an hour.

    Any number of processes may crawl one tube: each of them ends when the tube is empty. If a process dies, its
    requests are ready again when its session ends. Crawlee counts the retries of a request, so the tube needs no
    `max_attempts`. The tube is never purged; `drop` drops it.
    """

    def __init__(self, tube: tubes.AsyncTube, *, block: float = 30.0) -> None:
        self._tube = tube
        self._block = block
        self._held: dict[str, tubes.AsyncTask] = {}
        # The monotonic end and the reason of each block, and each Crawl-delay, by lane.
        self._blocks: dict[str, tuple[float, str]] = {}
        self._delays: dict[str, float] = {}
        # The number of the latest request at the forefront.
        self._front = 0

    @property
    def inner(self) -> TubeRequestManager:
        """This manager, which does not wrap another one."""
        return self

    # -- adding --------------------------------------------------------------------------------------------------------

    async def add_request(self, request: str | Request, *, forefront: bool = False) -> ProcessedRequest:
        """Add a request, unless the tube has or remembers one with its unique key."""
        added = self._transform_request(request)
        item = self._item(added, forefront)
        task = await self._retry(lambda: self._tube.put(item.data, **item.options))
        if forefront:
            await self._move_up(item, task)
        return _processed(added, is_new=task.created_now)

    async def add_requests(self, requests: Sequence[str | Request], *, forefront: bool = False, **_: object) -> None:
        """Add requests in one call, each as `add_request` does. Log those that cannot be stored, and add the others."""
        items: list[tubes.Item] = []
        for request in requests:
            try:
                items.append(self._item(self._transform_request(request), forefront))
            except Exception as error:
                _log.error("Request %s is dropped: %s", excerpt(request), error)
        tasks = await self._retry(lambda: self._tube.put_many(items, errors="return"))
        for item, task in zip(items, tasks, strict=True):
            if isinstance(task, tubes.TubesError):
                _log.error("Request to %s is dropped: %s", item.data["url"], task)
            elif forefront:
                await self._move_up(item, task)

    async def _move_up(self, item: tubes.Item, task: tubes.AsyncTask) -> None:
        """Move a request that the tube already had to the forefront, as Crawlee's queues do."""
        pri = item.options.get("pri")
        if pri is not None and not task.created_now and task.state == "ready":
            with suppress(tubes.TaskNotFound):
                await self._retry(lambda: self._tube.update(task, pri=pri))

    def _item(self, request: Request, forefront: bool) -> tubes.Item:
        key = b85encode(sha256(request.unique_key.encode()).digest()[:12]).decode()
        lane = host_of(urlsplit(request.url))
        return tubes.Item(_data(request), key=key, utube=lane, **self._place(forefront))

    def _place(self, forefront: bool) -> Facts:
        """Return the `pri` of a request. At the forefront the latest comes first, in all processes.

        So it counts down in seconds, or faster if this process adds more than one request per second.
        """
        if "pri" not in self._tube.driver.options:
            return {}
        if not forefront:
            return {"pri": MAX_PRI}
        self._front = max(self._front + 1, int(time()))
        return {"pri": MAX_PRI - self._front}

    # -- working -------------------------------------------------------------------------------------------------------

    async def fetch_next_request(self) -> Request | None:
        """Wait for a request that may be sent now. Return None if the tube is empty, or after half a minute."""
        return await self._retry(self._fetch)

    async def _fetch(self) -> Request | None:
        """Take tasks until one is a new request. Bury those that are not requests, and ack copies of held ones."""
        while (task := await self._take()) is not None:
            try:
                request = _request(task.data)
            except Exception as error:
                _log.error("Task %d is buried, it is not a request: %s", task.id, error)
                await task.bury(reason_of(error))
            else:
                held = self._held.get(request.unique_key)
                if held is None or held.id == task.id:
                    self._held[request.unique_key] = task
                    return request
                await self._retry(partial(self._tube.ack_many, [task]))
        return None

    async def _take(self) -> tubes.AsyncTask | None:
        """Wait for a task that may be taken. Return None if the tube is empty, or after half a minute."""
        take = asyncio.create_task(self._tube.take(_FETCH_TIMEOUT))
        empty = asyncio.create_task(self._tube.join(_FETCH_TIMEOUT))
        try:
            await asyncio.wait((take, empty), return_when=asyncio.FIRST_COMPLETED)
            if not take.done():
                take.cancel()
                await asyncio.wait((take,))
        except asyncio.CancelledError:
            take.add_done_callback(_release)
            take.cancel()
            raise
        finally:
            empty.cancel()
        return None if take.cancelled() else take.result()

    async def mark_request_as_handled(self, request: Request) -> ProcessedRequest | None:
        """Ack the task of a request that has succeeded or is given up. Return None if it is not held."""
        is_held = await self._finish(request, lambda task: task.ack())
        return _processed(request, is_handled=True) if is_held else None

    async def reclaim_request(self, request: Request, *, forefront: bool = False) -> ProcessedRequest | None:
        """Release the task of a request, and store the changed request. Return None if it is not held."""
        place = self._place(forefront)
        try:
            is_held = await self._finish(request, lambda task: task.release(data=_data(request), **place))
        except ValueError as error:
            _log.error("Request to %s is repeated without its changes: %s", request.url, error)
            is_held = await self._finish(request, lambda task: task.release(**place))
        return _processed(request) if is_held else None

    async def _finish(self, request: Request, act: Callable[[tubes.AsyncTask], Awaitable[object]]) -> bool:
        """Store the limits of the host, and end the take of a request. Return False if it is not held."""
        task = self._held.get(request.unique_key)
        if task is None:
            return False
        try:
            await self._retry(lambda: self._cool_down(str(task.utube)))
            await self._retry(lambda: act(task))
            is_held = True
        except tubes.TaskNotTaken as error:
            _log.warning("Request to %s is repeated by another process: %s", request.url, error)
            is_held = False
        # Forget it last: Crawlee repeats a call that was cancelled or has failed.
        self._held.pop(request.unique_key, None)
        return is_held

    async def _cool_down(self, lane: str) -> None:
        """Store the Crawl-delay and the block of a host."""
        if lane in self._delays:  # An earlier run may have stored another delay.
            delay, interval = self._delays[lane], self._tube.options.get("interval", 0)
            await self._tube.lane(lane).configure(interval=delay if delay > interval else None)
            self._delays.pop(lane, None)
        if lane in self._blocks:
            until, reason = self._blocks[lane]
            await self._tube.lane(lane).block(max(until - monotonic(), 0.0), extend=True, reason=reason)
            self._blocks.pop(lane, None)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the server is unreachable."""
        while True:
            try:
                return await call()
            except tubes.ConnectionLost as error:
                _log.warning("Trying again in %g s: %s", _PAUSE, error)
                await asyncio.sleep(_PAUSE)

    # -- the end of the crawl ------------------------------------------------------------------------------------------

    async def is_finished(self) -> bool:
        """Return True if no request is left in any process."""
        return await self._retry(lambda: self._tube.join(0))

    async def is_empty(self) -> bool:
        """Return the same as `is_finished`: `fetch_next_request` waits while requests are left."""
        return await self.is_finished()

    async def get_stall_reason(self) -> None:
        """Return None: the crawl waits for blocked hosts as long as necessary."""

    async def get_handled_count(self) -> int:
        return (await self._retry(self._tube.statistics)).tasks["done"]

    async def get_total_count(self) -> int:
        tasks = (await self._retry(self._tube.statistics)).tasks
        return tasks["total"] + tasks["done"]

    async def drop(self) -> None:
        """Drop the tube."""
        await self._tube.drop(force=True)

    async def purge(self) -> None:
        """Keep the requests: they belong to all processes."""

    # -- rate limits of hosts ------------------------------------------------------------------------------------------

    def record_domain_delay(self, url: str, *, retry_after: timedelta | None = None) -> bool:
        """Record a 429: the host is blocked when the request is released."""
        seconds = limit_delay(self._block if retry_after is None else retry_after.total_seconds())
        reason = "429" if retry_after is None else f"429, Retry-After {seconds:.0f}"
        lane = host_of(urlsplit(url))
        self._blocks[lane] = max(self._blocks.get(lane, (0.0, "")), (monotonic() + seconds, reason))
        return True

    def is_throttled(self, url: str) -> bool:
        """Return True after a 429: then Crawlee reclaims the request without counting a retry."""
        return host_of(urlsplit(url)) in self._blocks

    def record_success(self, url: str) -> None:
        """Do nothing: only Retry-After counts, and no backoff has to be reset."""

    def set_crawl_delay(self, url: str, delay_seconds: float) -> None:
        """Use the Crawl-delay of a robots.txt for its host, if it is longer than the tube's interval."""
        self._delays[host_of(urlsplit(url))] = limit_delay(delay_seconds)


def _parse_retry_after(header: str | None) -> timedelta | None:
    """Read a header as all parts of tubes do. Crawlee's own parser fails for a number of more than 14 digits."""
    # A 0 would repeat the request for ever without a pause, since it does not count as a retry.
    return timedelta(seconds=seconds) if (seconds := retry_after(header, most=_MAX_RETRY_AFTER)) else None


# Crawlee parses the header before it calls `record_domain_delay`.
vars(sys.modules[BasicCrawler.__module__])["parse_retry_after_header"] = _parse_retry_after


def _data(request: Request) -> Facts:
    """Return a request as JSON data. Raises `ValueError` if a part of it cannot be stored."""
    user_data = dict(request.user_data)
    try:
        json.dumps(user_data, allow_nan=False)  # `model_dump` makes None from nan and text from objects.
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    data = request.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"payload"})
    if "label" in user_data:  # Otherwise it is only an attribute of the request.
        data["label"] = user_data["label"]
    if request.payload is not None:
        try:
            data["payload"] = request.payload.decode()
        except UnicodeDecodeError:
            data["payload"] = {"base64": b64encode(request.payload).decode()}
    return data


def _request(data: Any) -> Request:
    """Return a stored request. Another program may have put the URL alone. Raises `ValueError` for other data."""
    if isinstance(data, str):
        return Request.from_url(data)
    if not isinstance(data, dict):
        return Request.model_validate(data)
    fields = cast("dict[str, Any]", data)
    payload: Any = fields.get("payload")
    if isinstance(payload, dict):
        fields = fields | {"payload": b64decode(cast("dict[str, str]", payload)["base64"])}
    request = Request.model_validate(fields)
    if "label" in fields:
        request.user_data["label"] = fields["label"]
    return request


def _processed(request: Request, *, is_new: bool = False, is_handled: bool = False) -> ProcessedRequest:
    return ProcessedRequest(
        unique_key=request.unique_key, was_already_present=not is_new, was_already_handled=is_handled
    )


def _release(take: asyncio.Task[tubes.AsyncTask | None]) -> None:
    """Release the task if the take succeeded although its fetch was cancelled."""
    if not take.cancelled() and take.exception() is None and (task := take.result()) is not None:
        port_of(task._tube).release_later(task)
