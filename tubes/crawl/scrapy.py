"""A scheduler for Scrapy that stores requests as tasks in a tube: polite over all processes, and without losses.

    SCHEDULER = "tubes.crawl.scrapy.Scheduler"
    TUBES_URL = "redis://localhost"

Any number of processes may run the spider on the same tube; one request per host is in flight. docs/howto/scrapy.md
lists the settings.

How it works. Three loops run in parallel to the engine. `_write` stores the new requests of the spider, and then acks
the requests that yielded them: if the process dies in between, they are repeated. The acks travel with the next new
requests. `_take` waits for tasks, as many as the downloader has room for; it takes none in advance, since a taken task
blocks its host. `_watch` checks whether the tube is empty: then the crawl is finished in all processes.

Scripts on a server, which pages share if they come together: `put_keyed` stores the new requests, `ack_many` acks,
`wake_at_due` wakes a waiting process when the interval of a host ends (each waiting process may call it), `take` runs
in the woken process, and `take_many` takes the rest if several hosts are ready.

The scheduler uses two private parts of Scrapy's engine. `_slot.nextcall.schedule` wakes the engine, which otherwise
looks for requests every 5 seconds. `_slot.remove_request` is called at the end of every request, after its callback,
its items, or its redirect, retry or errback: the scheduler acks the task there.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b85encode
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self

import tubes
from tubes.crawl.hosts import host_of
from tubes.errors import Facts, excerpt, needs
from tubes.worker.delays import limit_delay, retry_after
from tubes.worker.outcomes import reason_of

with needs("tubes.crawl.scrapy", "scrapy"):
    from scrapy import Request, signals
    from scrapy.core.scheduler import BaseScheduler
    from scrapy.exceptions import CloseSpider, IgnoreRequest
    from scrapy.http.request import NO_CALLBACK
    from scrapy.utils.defer import deferred_from_coro
    from scrapy.utils.httpobj import urlparse_cached
    from scrapy.utils.request import request_from_dict

    from tubes.crawl.encoding import decode, encode

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.robotstxt import RobotParser
    from twisted.internet.defer import Deferred

_log: Final = logging.getLogger(__name__)
# The `pri` of Scrapy's priority 0. Scrapy begins with the largest priority, a tube with the smallest `pri`.
_MIDDLE: Final = 2**31
# Transient errors, and seconds until the next attempt.
_TRANSIENT: Final = (tubes.ConnectionLost, tubes.ServerFull, tubes.StoreFull)
_PAUSE: Final = 1.0
# Seconds within which a request usually starts after its task was taken.
_START: Final = 0.01
# Attributes of a plain request that are not stored if they have these values. Subclasses have other defaults.
_DEFAULTS: Final = {name: value for name, value in Request("about:blank").to_dict().items() if name != "url"}
# Attributes that are set after the constructor of a subclass, which may change them.
_SETTABLE: Final = frozenset(("method", "headers", "cookies", "flags", "priority", "dont_filter"))


class Scheduler(BaseScheduler):
    """Keeps the requests of a spider in a tube, with one lane per host. Needs the asyncio reactor.

    Requests to the same URL are stored once. A request with `dont_filter=True` is always stored, unless it is a start
    request.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self._crawler: Any = crawler
        self._stats: Any = crawler.stats
        self._url: str | None = settings.get("TUBES_URL")
        self._tube_name: str = settings.get("TUBES_TUBE", "scrapy.{spider}")
        self._interval = settings.getfloat("TUBES_INTERVAL", 1.0)
        self._interval_from: str = settings.get("TUBES_INTERVAL_FROM", "response")
        self._options: Facts = {
            "interval": self._interval,
            "interval_from": "take" if self._interval_from == "start" else "ack",
            "jitter": settings.getfloat("TUBES_JITTER", 0.0),
            "max_in_flight": settings.getint("TUBES_MAX_IN_FLIGHT", 1),
            "order": settings.get("TUBES_ORDER", "round_robin"),
            "key_ttl": settings.getfloat("TUBES_KEY_TTL", 30 * 86_400.0),
            "max_attempts": settings.getint("TUBES_MAX_ATTEMPTS", 5),
            "partitions": settings.getint("TUBES_PARTITIONS") or None,
        }
        self._block = settings.getfloat("TUBES_BLOCK", 30.0)
        self._block_max = settings.getfloat("TUBES_BLOCK_MAX", 3600.0)
        self._known_max = settings.getint("TUBES_KNOWN_MAX", 100_000)
        self._buries = settings.getbool("TUBES_BURY", True)
        self._limit = settings.getint("CONCURRENT_REQUESTS") or 1000  # 0: no limit
        # Requests that are not stored yet, and finished tasks, with a reason if they must be buried. Once the requests
        # and the blocks of a finished task are stored, it moves to `_stored`.
        self._puts: list[tubes.Item] = []
        self._ended: list[tuple[tubes.AsyncTask, str | None]] = []
        self._stored: list[tuple[tubes.AsyncTask, str | None]] = []
        # The monotonic end and the reason of each block, and each Crawl-delay, that are not in the tube yet, by lane.
        self._blocks: dict[str, tuple[float, str]] = {}
        self._delays: dict[str, float | None] = {}
        # The Crawl-delays that are longer than the interval, by lane.
        self._crawl_delays: dict[str, float] = {}
        # The monotonic end of each block by the response to a request for robots.txt, by lane.
        self._robots_blocks: dict[str, float] = {}
        # Taken tasks whose requests have not started, and tasks of running requests.
        self._ready: deque[tuple[tubes.AsyncTask, Request]] = deque()
        self._held: dict[Request, tubes.AsyncTask] = {}
        # The monotonic times of the takes of requests that have not reached the downloader.
        self._takes: dict[Request, float] = {}
        self._reasons: dict[Request, str] = {}
        # Keys that are in the tube, from the oldest to the newest.
        self._known: dict[str, None] = {}
        # Each event wakes one of the loops.
        self._write_event, self._take_event = asyncio.Event(), asyncio.Event()
        self._is_over = self._is_broken = self._is_closing = False
        self._loops: list[asyncio.Task[None]] = []

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    # -- called by the engine ------------------------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None]:
        return deferred_from_coro(self._open(spider))

    def close(self, reason: str) -> Deferred[None]:
        return deferred_from_coro(self._close())

    def has_pending_requests(self) -> bool:
        return not self._is_broken and bool(not self._is_over or self._ready or not self._is_written())

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request for `_write`. Return False if it is already known, or cannot be stored."""
        try:
            key = self._key(request)
            if key in self._known:
                self._stats.inc_value("tubes/filtered")
                return False
            slot = self._slot(request)
            lane = host_of(urlparse_cached(request)) if slot is None else slot
            data = self._encode(request, slot)
            pri = min(max(_MIDDLE - request.priority, 0), 2 * _MIDDLE - 1)
        except Exception as error:
            self._drop(request.url, error)
            return False
        self._puts.append(tubes.Item(data, utube=lane, pri=pri, key=key))
        if key is not None:
            self._known[key] = None
            if len(self._known) > self._known_max:
                del self._known[next(iter(self._known))]
        self._is_over = False
        self._write_event.set()
        return True

    def next_request(self) -> Request | None:
        self._take_event.set()
        if not self._ready:
            return None
        task, request = self._ready.popleft()
        self._held[request] = task
        return request

    async def _open(self, spider: Spider) -> None:
        if self._interval_from not in ("response", "start"):
            rule = "must be 'response' or 'start'"
            raise tubes.InvalidOption(option="TUBES_INTERVAL_FROM", value=self._interval_from, rule=rule)
        try:
            name = self._tube_name.format(spider=spider.name)
        except (LookupError, ValueError):
            rule = "must be a name in which only {spider} is replaced"
            raise tubes.InvalidOption(option="TUBES_TUBE", value=self._tube_name, rule=rule) from None
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("tubes.crawl.scrapy needs Scrapy's asyncio reactor: remove TWISTED_REACTOR") from None
        self._spider, self._engine = spider, self._crawler.engine
        self._queue = tubes.aio.connect(*([self._url] if self._url else []), codec="json")
        self._tube: tubes.AsyncTube = await self._queue.create_tube(
            name, "utubettl", if_exists="update", **self._options
        )
        tasks = (await self._tube.statistics()).tasks
        self._is_resumed = bool(tasks["total"] or tasks["done"])
        if self._is_resumed:
            text = "Continuing with tube %r: %d requests, %d of them buried; known ones are not fetched again"
            _log.info(text, name, tasks["total"], tasks["buried"], extra={"spider": spider})
        self._connect()
        self._loops = [asyncio.create_task(self._repeat(step)) for step in (self._write, self._take, self._watch)]

    def _connect(self) -> None:
        """Observe the engine: the end of each request, and the rate limits of hosts."""
        slot = self._engine._slot
        remove = slot.remove_request

        def remove_request(request: Request) -> None:
            self._end(request)
            remove(request)

        slot.remove_request = remove_request
        connect = self._crawler.signals.connect
        connect(self._on_response, signals.response_downloaded)
        connect(self._on_error, signals.spider_error)
        connect(self._on_idle, signals.spider_idle)
        if self._interval_from == "start":
            connect(self._on_start, signals.request_reached_downloader)
        if hasattr(signals, "robots_parsed"):  # Scrapy 2.18
            connect(self._on_robots, signals.robots_parsed)

    async def _close(self) -> None:
        """Store the remaining requests, return the tasks that were not started, and end the session."""
        if not self._loops:
            return
        self._is_closing = True
        writer, *others = self._loops
        for loop in others:
            loop.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._write_event.set()
        await writer
        try:
            for task, _ in self._ready:
                await self._tube._decline(task, 0)
        except tubes.TubesError as error:
            _log.warning("Requests cannot be returned before the session ends: %s", error)
        await self._queue.close()

    # -- loops ---------------------------------------------------------------------------------------------------------

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step. Wait after a transient error, and close the spider after any other error."""
        while True:
            try:
                await step()
                if self._is_closing and self._is_written():
                    return
            except Exception as error:
                if self._is_closing or not isinstance(error, _TRANSIENT):
                    _log.error("The crawl cannot continue: %s", error, exc_info=not isinstance(error, tubes.TubesError))
                    self._is_broken = True
                    self._wake()
                    return
                _log.warning("Trying again in %g s: %s", _PAUSE, error)
                await asyncio.sleep(_PAUSE)
                self._write_event.set()
                self._take_event.set()

    async def _write(self) -> None:
        """Store new requests and the blocks of hosts; with the same message, ack or bury the tasks in `_stored`."""
        await self._write_event.wait()
        self._write_event.clear()
        puts, ended = self._puts[:], self._ended[:]
        if puts or self._blocks or self._delays:
            for error in await asyncio.gather(self._store(puts), self._finish(), return_exceptions=True):
                if error is not None:
                    raise error
        self._stored += ended
        del self._ended[: len(ended)]
        if self._stored and not self._write_event.is_set():  # No new request to wait for.
            await self._finish()

    def _is_written(self) -> bool:
        return not (self._puts or self._ended or self._stored)

    async def _store(self, puts: list[tubes.Item]) -> None:
        if puts:
            await self._put(puts)
        if self._blocks or self._delays:
            await self._write_blocks()

    async def _finish(self) -> None:
        """Ack or bury the tasks in `_stored`."""
        stored = self._stored[:]
        if acked := [task for task, reason in stored if reason is None]:
            found = await self._tube.ack_many(acked)
            self._count("acked", sum(found.values()))
            self._count("lost", len(found) - sum(found.values()))
        for task, reason in stored:
            if reason is not None:
                try:  # Bury by the lease: another process may hold the task now.
                    await self._tube.bury(str(task.lease), reason)
                except tubes.TaskNotTaken:
                    self._count("lost")
                else:
                    self._count("buried")
        del self._stored[: len(stored)]

    async def _put(self, puts: list[tubes.Item]) -> None:
        """Put the first requests of the queue, and drop requests that the tube refuses."""
        tasks = await self._tube.put_many(puts, errors="return")
        del self._puts[: len(puts)]
        created = 0
        for item, task in zip(puts, tasks, strict=True):
            if isinstance(task, tubes.TubesError):
                self._known.pop(str(item.options.get("key")), None)
                self._drop(item.data["url"], task)
            else:
                created += task.created_now
                self._count("filtered", not task.created_now)
        self._count("put", created)

    async def _write_blocks(self) -> None:
        """Store the blocks and the Crawl-delays of hosts."""
        stored, delays, now = dict(self._blocks), dict(self._delays), monotonic()
        blocks = [
            self._tube.lane(lane).block(max(end - now, 0.0), extend=True, reason=reason)
            for lane, (end, reason) in stored.items()
        ]
        await asyncio.gather(
            *blocks, *(self._tube.lane(lane).configure(interval=delay) for lane, delay in delays.items())
        )
        self._blocks = {lane: block for lane, block in self._blocks.items() if stored.get(lane) != block}
        self._delays = {lane: delay for lane, delay in self._delays.items() if lane not in delays}

    async def _take(self) -> None:
        """Wait until the engine needs requests, then take as many tasks as the downloader has room for."""
        await self._take_event.wait()
        self._take_event.clear()
        room = self._limit - len(self._ready) - len(self._engine.downloader.active)
        if room < 1:
            return
        tasks = await self._tube.take_many(room)
        self._is_over, taken_at = False, monotonic()
        for task in tasks:
            try:
                request = self._decode(task.data)
            except Exception as error:
                _log.error("Request %s is buried: %s", excerpt(task.data), error, extra={"spider": self._spider})
                self._ended.append((task, reason_of(error)))
                self._write_event.set()
            else:
                self._ready.append((task, request))
                self._takes[request] = taken_at
        self._count("taken", len(tasks))
        self._wake()

    async def _watch(self) -> None:
        """While this process is idle, check every second whether the tube is empty.

        A waiting `join` would make each process receive the events of all requests.
        """
        await asyncio.sleep(_PAUSE)
        is_idle = self._is_written() and not (self._is_over or self._ready or self._held)
        if is_idle and await self._tube.join(0):
            self._is_over = True
            self._wake()

    def _wake(self) -> None:
        """Make the engine look for requests now."""
        if self._engine._slot is not None:
            self._engine._slot.nextcall.schedule()

    # -- signals -------------------------------------------------------------------------------------------------------

    def _end(self, request: Request) -> None:
        """Queue the task of a finished request for `_write`, after the requests that it has yielded."""
        task = self._held.pop(request, None)
        self._takes.pop(request, None)
        if task is not None:
            self._ended.append((task, self._reasons.pop(request, None)))
            self._write_event.set()

    def _on_start(self, request: Request) -> None:
        """Count the interval from the start of a request that starts late: the tube counts from the take."""
        now, lane = monotonic(), self._lane_of(request)
        if now - self._takes.pop(request, now) > _START:
            end = now + self._crawl_delays.get(lane, self._interval)
            self._blocks[lane] = max((end, "a late start"), self._blocks.get(lane, (0.0, "")))
            self._write_event.set()

    def _on_response(self, response: Response, request: Request) -> None:
        if response.status not in (429, 503):
            return
        seconds = retry_after(response.headers.get("Retry-After"), most=self._block_max)
        reason = f"{response.status}"
        if seconds is not None:
            reason = f"{reason}, Retry-After {seconds:.0f}"
        elif response.status == 429:
            seconds = min(self._block, self._block_max)
        if seconds is not None:
            lane, end = self._lane_of(request), monotonic() + seconds
            self._blocks[lane] = max((end, reason), self._blocks.get(lane, (0.0, "")))
            if request not in self._held:
                self._robots_blocks[lane] = end
            self._count("blocked")
            self._write_event.set()

    async def _on_robots(self, robotparser: RobotParser, request: Request) -> None:
        """Obey the Crawl-delay, and wait before the page, since the request for robots.txt bypassed the scheduler."""
        lane, settings = self._lane_of(request), self._crawler.settings
        agent = settings["ROBOTSTXT_USER_AGENT"] or request.headers.get("User-Agent") or settings["USER_AGENT"]
        delay = limit_delay(robotparser.crawl_delay(agent) or 0.0, self._block_max)
        if delay > self._interval or self._is_resumed:  # An earlier run may have stored another delay.
            self._delays[lane] = delay if delay > self._interval else None
        if delay > self._interval:
            self._crawl_delays[lane] = delay
        interval, now = max(delay, self._interval), monotonic()
        wait = max(interval, self._robots_blocks.pop(lane, now) - now)
        if self._interval_from == "start":  # The interval of the page begins at its start, a moment after the sleep.
            block = now + wait + interval + _START, "interval after the request for robots.txt"
            self._blocks[lane] = max(block, self._blocks.get(lane, (0.0, "")))
        self._write_event.set()
        await asyncio.sleep(wait)

    def _on_error(self, failure: object, response: object) -> None:
        """Record the error of a callback or an errback."""
        self._fail(getattr(response, "request", None), failure)

    def _errback(self, failure: Any) -> Any:
        """Record the error of a request that has no errback of its own."""
        if not failure.check(IgnoreRequest):
            self._fail(failure.request, failure)
        return failure

    def _fail(self, request: Request | None, failure: Any) -> None:
        if self._buries and request in self._held:
            self._reasons[request] = reason_of(failure.value)

    def _on_idle(self) -> None:
        if self._is_broken:
            raise CloseSpider("tubes_failed")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _key(self, request: Request) -> str | None:
        """Return the key of a request; None: it is stored whether it is known or not."""
        # Start requests have `dont_filter=True`. Their mark is not stored, so copies of them do not inherit it.
        if request.dont_filter and not request.meta.get("is_start_request"):
            return None
        return b85encode(self._crawler.request_fingerprinter.fingerprint(request)[:12]).decode()

    def _lane_of(self, request: Request) -> str:
        """Return the lane of a running request, which may have bypassed the scheduler."""
        task = self._held.get(request)
        return str(task.utube) if task is not None else host_of(urlparse_cached(request))

    def _slot(self, request: Request) -> str | None:
        """Return the `download_slot` of a request if the spider has set it.

        The downloader also sets it; redirects, retries and copies of meta inherit it from a running request.
        """
        slot: str | None = request.meta.get("download_slot")
        is_inherited = slot is not None and any(
            other.meta.get("download_slot") == slot and "download_slot" not in _fields(task.data).get("meta", {})
            for other, task in self._held.items()
        )
        return None if is_inherited else slot

    def _encode(self, request: Request, slot: str | None) -> dict[str, object]:
        """Return a request as JSON data. Raises `ValueError` if a part of it cannot be stored."""
        own = {"callback": NO_CALLBACK, "errback": self._errback}
        if cleared := [name for name, function in own.items() if getattr(request, name) == function]:
            request = request.replace(**dict.fromkeys(cleared))
        fields = request.to_dict(spider=self._spider)
        fields["no_callback"] = "callback" in cleared or None
        fields["meta"] = {name: value for name, value in fields["meta"].items() if name != "is_start_request"}
        if slot is None:
            fields["meta"].pop("download_slot", None)
        fields["headers"] = _recode(fields["headers"], bytes.decode)
        is_subclass = "_class" in fields
        stored = {name: value for name, value in fields.items() if is_subclass or value != _DEFAULTS.get(name)}
        return {name: encode(value, name) for name, value in stored.items()}

    def _decode(self, data: object) -> Request:
        fields = decode(_fields(data))
        if "headers" in fields:
            fields["headers"] = _recode(fields["headers"], str.encode)
        request = request_from_dict(fields, spider=self._spider)
        if fields.get("no_callback"):
            request.callback = NO_CALLBACK
        if type(request) is not Request:
            for name in fields.keys() & _SETTABLE:
                setattr(request, name, fields[name])
        if self._buries and request.errback is None:
            request.errback = self._errback
        return request

    def _drop(self, url: str, error: Exception) -> None:
        """Report a request that cannot be stored. The others are not affected."""
        _log.error("Request to %s is dropped: %s", url, error, extra={"spider": self._spider})
        self._count("dropped")

    def _count(self, name: str, number: int = 1) -> None:
        if number:
            self._stats.inc_value(f"tubes/{name}", number)


def _fields(data: object) -> Any:
    """Return the fields of a stored request. Another program may have put the URL alone."""
    return {"url": data} if isinstance(data, str) else data


def _recode(headers: Any, code: Callable[[Any, str], object]) -> dict[object, list[object]]:
    return {code(name, "latin-1"): [code(value, "latin-1") for value in values] for name, values in headers.items()}
