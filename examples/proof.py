"""What the servers noted, held against what the tube promises."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import aiohttp

import tubes


class Fetch(NamedTuple):
    """One request, as its server noted it; the times are seconds, by one clock for all hosts."""

    path: str
    status: int
    arrived: float
    answered: float
    #: For how many seconds it then asked to be left alone.
    retry_after: int


@dataclass(frozen=True)
class Record:
    """What one host noted: the most requests that it had at any moment, and all of them."""

    url: str
    most_in_flight: int
    fetches: list[Fetch]


@dataclass(frozen=True)
class Check:
    """A promise, whether it was kept (None: there was nothing to see), and what was seen."""

    promise: str
    kept: bool | None
    seen: str


async def read_records(urls: Iterable[str]) -> list[Record]:
    """Ask the hosts what they noted."""
    records: list[Record] = []
    async with aiohttp.ClientSession() as http:
        for url in urls:
            async with http.get(f"{url}-/records") as response:
                noted = await response.json()
            fetches = [Fetch(*fetch) for fetch in noted["fetches"]]
            records.append(Record(url, noted["most_in_flight"], fetches))
    return records


def by_url(records: Iterable[Record]) -> dict[str, list[Fetch]]:
    """The requests for each URL, in the order in which they arrived."""
    found: defaultdict[str, list[Fetch]] = defaultdict(list)
    for record in records:
        for fetch in sorted(record.fetches, key=lambda fetch: fetch.arrived):
            found[record.url.removesuffix("/") + fetch.path].append(fetch)
    return found


def most_in_flight(records: Iterable[Record]) -> str:
    """The most requests that each host had at any moment, in words."""
    return "most on each host: " + " ".join(str(record.most_in_flight) for record in records)


def one_in_flight(records: Collection[Record]) -> Check:
    """What the lanes are for."""
    kept = all(record.most_in_flight <= 1 for record in records)
    return Check("at most 1 request in flight per host", kept, most_in_flight(records))


def held(promise: str, waits: Mapping[float, Collection[float]]) -> Check:
    """Whether nobody came earlier than was asked; given is which seconds were asked, and which were seen."""
    kept = all(min(seen) >= asked for asked, seen in waits.items()) if waits else None
    lines = [
        f"asked {asked:g} s: seen {min(seen):.3f} to {max(seen):.3f} s, {len(seen)} times"
        for asked, seen in sorted(waits.items())
    ]
    return Check(promise, kept, "\n".join(lines))


def interval_kept(records: Iterable[Record], interval: float) -> Check:
    """From one request to the next on the same host, as the host saw them arrive."""
    arrivals = [sorted(fetch.arrived for fetch in record.fetches) for record in records]
    gaps = [after - before for times in arrivals for before, after in pairwise(times)]
    return held("an interval between 2 requests to a host", {interval: gaps} if gaps else {})


def left_alone(records: Iterable[Record]) -> Check:
    """A host that has answered with Retry-After sees nobody until that is over."""
    waits: defaultdict[float, list[float]] = defaultdict(list)
    for record in records:
        for busy in filter(lambda fetch: fetch.retry_after, record.fetches):
            after = [fetch.arrived - busy.answered for fetch in record.fetches if fetch.arrived > busy.answered]
            if after:
                waits[busy.retry_after].append(min(after))
    return held("a host that says Retry-After left alone", waits)


def fetched_once(records: Collection[Record]) -> Check:
    """An answer is final."""
    answers = [sum(fetch.status < 400 for fetch in fetches) for fetches in by_url(records).values()]
    once, again = answers.count(1), sum(count > 1 for count in answers)
    kept = again == 0 if once or again else None
    return Check("no URL fetched twice", kept, f"{once} URLs answered once, {again} again")


def rested(records: Iterable[Record], backoff: tubes.Backoff) -> Check:
    """A page that failed rests before it is tried again, after each attempt for longer."""
    waits: defaultdict[float, list[float]] = defaultdict(list)
    for fetches in by_url(records).values():
        for attempts, (failed, retry) in enumerate(pairwise(fetches), start=1):
            waits[backoff.delay(attempts)].append(retry.arrived - failed.answered)
    return held("failed pages rest as the backoff says", waits)


def hopeless_buried(records: Iterable[Record], attempts: int, buried: Mapping[str, str | None]) -> Check:
    """Buried is what failed at every attempt or for good, with its reason, and nothing else."""
    hopeless: dict[str, str] = {}
    for url, fetches in by_url(records).items():
        statuses = [fetch.status for fetch in fetches]
        if statuses[-1] == 404:
            hopeless[url] = "404 Not Found"
        elif min(statuses) >= 400 and len(statuses) == attempts:
            hopeless[url] = "max_attempts: release"
    kept = hopeless == buried if hopeless or buried else None
    seen = f"{len(hopeless)} were hopeless, {len(buried)} are buried"
    return Check("hopeless pages buried, and no others", kept, seen)


def control_differs(checks: Collection[Check]) -> Check:
    """Without lanes the promises about hosts are broken, and the records show it."""
    kept = all(check.kept is False for check in checks)
    return Check("control: broken without lanes", kept, "\n".join(check.seen for check in checks))
