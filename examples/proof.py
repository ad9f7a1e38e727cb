"""Checks of the promises of the tube against the records of the servers."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import aiohttp

import tubes


class Fetch(NamedTuple):
    """One request as recorded by its server; times are seconds of one clock for all hosts."""

    path: str
    status: int
    arrived: float
    responded: float
    #: The seconds of Retry-After in the response.
    retry_after: int


@dataclass(frozen=True)
class Record:
    """The record of one host: its maximum number of concurrent requests, and all requests."""

    url: str
    most_in_flight: int
    fetches: list[Fetch]


@dataclass(frozen=True)
class Check:
    """A promise, True if it was kept (None if it was not observed), and the observation."""

    promise: str
    kept: bool | None
    seen: str


async def read_records(urls: Iterable[str]) -> list[Record]:
    """Fetch the records of the hosts."""
    records: list[Record] = []
    async with aiohttp.ClientSession() as http:
        for url in urls:
            async with http.get(f"{url}-/records") as response:
                noted = await response.json()
            fetches = [Fetch(*fetch) for fetch in noted["fetches"]]
            records.append(Record(url, noted["most_in_flight"], fetches))
    return records


def by_url(records: Iterable[Record]) -> dict[str, list[Fetch]]:
    """Return the requests for each URL, in order of arrival."""
    found: defaultdict[str, list[Fetch]] = defaultdict(list)
    for record in records:
        for fetch in sorted(record.fetches, key=lambda fetch: fetch.arrived):
            found[record.url.removesuffix("/") + fetch.path].append(fetch)
    return found


def most_in_flight(records: Iterable[Record]) -> str:
    """Describe the maximum number of concurrent requests of each host."""
    return "maximum of each host: " + " ".join(str(record.most_in_flight) for record in records)


def one_in_flight(records: Collection[Record]) -> Check:
    """Check that no host had more than one request at a time, the purpose of lanes."""
    kept = all(record.most_in_flight <= 1 for record in records)
    return Check("at most 1 request in flight per host", kept, most_in_flight(records))


def check_waits(promise: str, waits: Mapping[float, Collection[float]]) -> Check:
    """Check that no request came too early: `waits` has the measured seconds by the required seconds."""
    kept = all(min(seen) >= required for required, seen in waits.items()) if waits else None
    lines = [
        f"at least {required:g} s: {min(seen):.3f} to {max(seen):.3f} s, {len(seen)} times"
        for required, seen in sorted(waits.items())
    ]
    return Check(promise, kept, "\n".join(lines))


def interval_kept(records: Iterable[Record], interval: float) -> Check:
    """Check the interval between the arrivals of two requests at the same host."""
    arrivals = [sorted(fetch.arrived for fetch in record.fetches) for record in records]
    gaps = [after - before for times in arrivals for before, after in pairwise(times)]
    return check_waits("an interval between requests to one host", {interval: gaps} if gaps else {})


def retry_after_kept(records: Iterable[Record]) -> Check:
    """Check that a host gets no request before its Retry-After is over."""
    waits: defaultdict[float, list[float]] = defaultdict(list)
    for record in records:
        for busy in filter(lambda fetch: fetch.retry_after, record.fetches):
            after = [fetch.arrived - busy.responded for fetch in record.fetches if fetch.arrived > busy.responded]
            if after:
                waits[busy.retry_after].append(min(after))
    return check_waits("no request to a host during its Retry-After", waits)


def fetched(records: Iterable[Record]) -> tuple[int, int]:
    """Return the number of URLs of pages, and the number of URLs that redirect to a page."""
    found = [{fetch.status for fetch in fetches} for fetches in by_url(records).values()]
    return sum(200 in statuses for statuses in found), sum(301 in statuses for statuses in found)


def fetched_once(records: Collection[Record]) -> Check:
    """Check that no page is requested again after a successful response."""
    successes = [sum(fetch.status < 400 for fetch in fetches) for fetches in by_url(records).values()]
    once, again = successes.count(1), sum(count > 1 for count in successes)
    kept = again == 0 if once or again else None
    return Check("no URL fetched twice", kept, f"{once} URLs fetched once, {again} again")


def backoff_kept(records: Iterable[Record], backoff: tubes.Backoff) -> Check:
    """Check that failed pages are delayed by the backoff before the next attempt."""
    waits: defaultdict[float, list[float]] = defaultdict(list)
    for fetches in by_url(records).values():
        for attempts, (failed, retry) in enumerate(pairwise(fetches), start=1):
            waits[backoff.delay(attempts)].append(retry.arrived - failed.responded)
    return check_waits("failed pages retried after their backoff", waits)


def hopeless_buried(records: Iterable[Record], attempts: int, buried: Mapping[str, str | None]) -> Check:
    """Check that exactly the pages that failed at every attempt or permanently are buried, with their reasons."""
    hopeless: dict[str, str] = {}
    for url, fetches in by_url(records).items():
        statuses = [fetch.status for fetch in fetches]
        if statuses[-1] == 404:
            hopeless[url] = "404 Not Found"
        elif min(statuses) >= 400 and len(statuses) == attempts:
            hopeless[url] = "max_attempts: release"
    kept = hopeless == buried if hopeless or buried else None
    seen = f"{len(hopeless)} always failed, {len(buried)} are buried"
    return Check("exactly the failing pages buried", kept, seen)


def control_differs(checks: Collection[Check], records: Iterable[Record]) -> Check:
    """Check that the records show broken promises in the run without lanes."""
    kept = all(check.kept is False for check in checks)
    rules = "both rules" if len(checks) > 1 else "the rule"
    seen = f"{max(record.most_in_flight for record in records)} requests at once to one host"
    return Check(f"without lanes the same crawl broke {rules}", kept, seen)
