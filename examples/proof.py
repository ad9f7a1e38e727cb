"""What the servers noted, held against what the tube promises."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import aiohttp


class Fetch(NamedTuple):
    """One request, as its server noted it; the times are seconds, by one clock for all hosts."""

    path: str
    status: int
    arrived: float
    answered: float


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


def fetched_once(records: Collection[Record]) -> Check:
    """An answer is final."""
    answers = [sum(fetch.status < 400 for fetch in fetches) for fetches in by_url(records).values()]
    once, again = answers.count(1), sum(count > 1 for count in answers)
    kept = again == 0 if once or again else None
    return Check("no URL fetched twice", kept, f"{once} URLs answered once, {again} again")


def growing_delay(records: Collection[Record], first_delay: float) -> Check:
    """A page that failed is left alone: for `first_delay` at first, then for twice as long, and so on."""
    waits: defaultdict[float, list[float]] = defaultdict(list)
    for fetches in by_url(records).values():
        for turn, (failed, retry) in enumerate(pairwise(fetches)):
            waits[first_delay * 2**turn].append(retry.arrived - failed.answered)
    early = any(min(seen) < asked for asked, seen in waits.items())
    kept = not early if early or len(waits) > 1 else None
    lines = [
        f"asked {asked:.1f} s: seen {min(seen):.2f} to {max(seen):.2f} s, {len(seen)} times"
        for asked, seen in sorted(waits.items())
    ]
    return Check("failed pages released with a growing delay", kept, "\n".join(lines))


def hopeless_buried(records: Collection[Record], attempts: int, buried: Collection[str]) -> Check:
    """Buried is what failed at every attempt or for good, and nothing else."""
    hopeless: set[str] = set()
    for url, fetches in by_url(records).items():
        statuses = [fetch.status for fetch in fetches]
        if min(statuses) >= 400 and (len(statuses) == attempts or statuses[-1] == 404):
            hopeless.add(url)
    kept = hopeless == set(buried) if hopeless or buried else None
    seen = f"{len(hopeless)} were hopeless, {len(buried)} are buried"
    return Check("hopeless pages buried, and no others", kept, seen)


def control_differs(records: Collection[Record]) -> Check:
    """Without lanes the first promise is broken, and the records show it."""
    kept = any(record.most_in_flight > 1 for record in records)
    return Check("control: more than 1 without lanes", kept, most_in_flight(records))
