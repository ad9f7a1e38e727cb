"""Measure the politeness, losses and cost of real spiders: Scrapy alone, with scrapy-redis, and with tubes.

    python -m benchmarks.crawl.spiders [--quick]

Spiders run as processes and crawl local hosts, which log the start and the end of each request; the table is computed
from this log. The hosts have different addresses, since Scrapy ignores ports: this needs Linux. Some pages are refused
twice at first, with Retry-After. scrapy-redis is installed into `.peers`. The exit status is 1 if a crawl with tubes
breaks a rule.

Columns of the table:
overlap: requests that start before the previous request to the same host has ended.
short: requests that start less than the interval after the start of the previous one: by more than 5 ms / in total.
early: requests during the Retry-After of a host.
lost: pages that were not fetched. twice: requests for pages that had already been fetched.
lag: milliseconds from the moment when a request to a host is allowed and a page of the host is known, to its start: the
median and the 99th percentile, once all processes crawl. With tubes a request is allowed an interval after the end of
the previous one, otherwise an interval after its start. With 10,000 hosts all processes are busy: then the lag is the
time in the queue.
cpu: processor time of a process in milliseconds per request, since its tenth response: the median of the processes
that were not killed, and the difference to one process of Scrapy alone. server: the same for the Valkey, for the whole
crawl. scripts: calls of functions and scripts on the Valkey per request. commands: all other commands per request,
those inside of scripts and those of clients.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import scrapy

from benchmarks.peers.environments import installed, python_of
from benchmarks.peers.processes import ROOT
from benchmarks.peers.servers import cpu_seconds
from benchmarks.shared.report import keep, machine
from tests.crawl.hosts import Hosts, Reply, Visit, serve
from tests.crawl.runs import Run, spider
from tubes.testing import LocalServer

#: Seconds by which an interval must be too short to count as clearly short.
CLEARLY: Final = 0.005
#: Seconds until other processes repeat the requests of a killed one, and seconds for which a stopped server is down.
SESSION_TTL: Final = 5
DOWN: Final = 1.0
#: Maximum duration of one crawl, in seconds.
PATIENCE: Final = 900.0

PLAIN, SCRAPY_REDIS, TUBES = "Scrapy", "scrapy-redis", "tubes"


class Case(NamedTuple):
    """A crawl. `event` happens when a sixth of the pages has been fetched."""

    kind: str
    processes: int
    interval: float = 0.2
    event: str = ""
    #: What the interval is counted from, with tubes.
    interval_from: str = "response"
    #: Hosts with two pages each; 0: the hosts and pages of the size.
    hosts: int = 0

    @property
    def name(self) -> str:
        since = "" if self.interval_from == "response" else f", from the {self.interval_from}"
        hosts = f", {self.hosts:,} hosts" if self.hosts else ""
        return f"{self.kind} x {self.processes}{since}{self.event and f', {self.event}'}{hosts}"


class Size(NamedTuple):
    """The number of hosts, the number of pages of each host, and the crawls."""

    hosts: int
    pages: int
    cases: list[Case]


KILL, INTERRUPT, RESTART, RESUME = "kill -9 of one", "Ctrl-C of one", "server killed", "kill -9 and resume"

# fmt: off
QUICK: Final = Size(10, 7, [
    Case(PLAIN, 1), Case(PLAIN, 3), Case(SCRAPY_REDIS, 3), Case(TUBES, 1), Case(TUBES, 1, interval_from="start"),
    Case(TUBES, 3), Case(TUBES, 3, event=KILL),
])
DEFAULT: Final = Size(30, 22, [
    Case(PLAIN, 1), Case(PLAIN, 3), Case(SCRAPY_REDIS, 3), Case(SCRAPY_REDIS, 3, event=KILL),
    Case(TUBES, 1), Case(TUBES, 1, interval_from="start"), Case(TUBES, 3), Case(TUBES, 10),
    *(Case(TUBES, 3, event=event) for event in (KILL, INTERRUPT, RESTART)), Case(TUBES, 1, event=RESUME),
    *(Case(kind, count, 1.0) for kind, count in ((PLAIN, 1), (PLAIN, 3), (SCRAPY_REDIS, 3), (TUBES, 1), (TUBES, 3))),
    *(Case(kind, 10, 1.0, hosts=1000) for kind in (PLAIN, SCRAPY_REDIS, TUBES)),
    *(Case(kind, 10, 1.0, hosts=10_000) for kind in (SCRAPY_REDIS, TUBES)),
])
# fmt: on


# -- a crawl -----------------------------------------------------------------------------------------------------------


class Usage(NamedTuple):
    """The processor seconds of a server since its start, the scripts, and the other commands."""

    cpu: float = 0.0
    scripts: float = 0.0
    commands: float = 0.0

    def plus(self, other: Usage, factor: float = 1.0) -> Usage:
        return Usage(*(mine + factor * its for mine, its in zip(self, other, strict=True)))


def usage(server: LocalServer) -> Usage:
    """Read the usage of a server."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")  # pyright: ignore[reportUnknownMemberType]
    calls = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}
    scripts = sum(calls.pop(name, 0) for name in ("fcall", "fcall_ro", "evalsha", "eval"))
    return Usage(cpu_seconds(server.pid), scripts, sum(calls.values()))


@dataclass
class Crawl:
    """The results of a crawl."""

    case: Case
    hosts: Hosts
    #: Statistics of the processes that were not killed.
    stats: list[dict[str, Any]]
    server: Usage


class Spiders:
    """Starts the processes of a case."""

    def __init__(self, case: Case, hosts: Hosts, server: LocalServer) -> None:
        self._case, self._hosts, self._server = case, hosts, server
        # Links lead to the other hosts: the argument of a process must not be too long.
        self._starts = [f"{url}/p/0" for url in hosts.urls[:: -(-hosts.count // 1000)]]
        self._environment: dict[str, str] = {}
        self._settings: dict[str, Any] = {
            "LOG_LEVEL": "WARNING",
            "CONCURRENT_REQUESTS": 100,
            "DOWNLOAD_DELAY": 0,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        }
        if case.kind == TUBES:
            return
        delay = {"DOWNLOAD_DELAY": case.interval, "RANDOMIZE_DOWNLOAD_DELAY": False}
        self._settings |= {**delay, "SCHEDULER": "scrapy.core.scheduler.Scheduler"}
        if case.kind == SCRAPY_REDIS:
            (packages,) = Path(python_of(PACKAGES)).parent.parent.glob("lib/python*/site-packages")
            self._environment["PYTHONPATH"] = f"{packages}:{ROOT}"
            self._settings |= {
                "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
                "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
                "SCHEDULER_PERSIST": True,  # otherwise the process that ends first removes the queue
                "REDIS_URL": server.url,
            }

    def start(self, number: int) -> Run:
        """Start one process, with its number as the user agent."""
        case, url = self._case, f"{self._server.url}?session_ttl={SESSION_TTL}"
        # scrapy-redis does not filter start requests: only one process gets them.
        starts = self._starts if case.kind != SCRAPY_REDIS or number == 0 else []
        tubes_settings = {"TUBES_INTERVAL": case.interval, "TUBES_INTERVAL_FROM": case.interval_from}
        settings = {**self._settings, **tubes_settings, "USER_AGENT": str(number)}
        return spider("follow", url, starts, env=self._environment, **settings)

    def start_all(self, stack: ExitStack) -> list[Run]:
        """Start all processes."""
        runs = [stack.enter_context(self.start(0))]
        if self._case.kind == SCRAPY_REDIS:  # a process without requests ends at once
            runs[0].wait_until(lambda: len(self._hosts.visits) >= self._hosts.count)
        return runs + [stack.enter_context(self.start(number)) for number in range(1, self._case.processes)]


PACKAGES: Final = ("scrapy-redis", f"scrapy=={scrapy.__version__}")


def crawl(case: Case, hosts: Hosts, server: LocalServer) -> Crawl:
    """Crawl all pages."""
    client: Any = server.client()
    client.flushall()
    before, lost = usage(server), Usage()
    spiders = Spiders(case, hosts, server)
    stats: list[dict[str, Any]] = []
    with ExitStack() as stack:
        runs = spiders.start_all(stack)
        if case.event:
            part = hosts.count * hosts.pages // 6
            runs[0].wait_until(lambda: len(hosts.visits) >= part)
            # A process of scrapy-redis ends when it finds no request for a moment.
            runs.sort(key=lambda run: run.process.poll() is None)
        if case.event in (KILL, RESUME):
            runs.pop().kill()
        if case.event == RESUME:
            runs.append(stack.enter_context(spiders.start(1)))
        elif case.event == INTERRUPT:
            stats.append(runs.pop().interrupt())
        elif case.event == RESTART:
            lost = usage(server)
            server.kill()
            time.sleep(DOWN)
            server.start()
        stats += [run.wait(PATIENCE) for run in runs]
    return Crawl(case, hosts, stats, usage(server).plus(lost).plus(before, -1))


# -- evaluation of the log ---------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A row of the table; `lags` in seconds, `cpu` in seconds per request, `server` per request."""

    case: Case
    rate: float
    overlap: int = 0
    clearly_short: int = 0
    short: int = 0
    early: int = 0
    lost: int = 0
    twice: int = 0
    cpu: float = 0.0
    server: Usage = field(default_factory=Usage)
    lags: list[float] = field(default_factory=list[float])
    broken: list[str] = field(default_factory=list[str])

    def lag(self, part: float) -> float:
        return (sorted(self.lags) or [0.0])[int(part * (len(self.lags) - 1))] * 1000

    def cells(self, plain: Row) -> list[str]:
        return [
            self.case.name,
            f"{self.case.interval:g} s",
            f"{self.overlap}",
            f"{self.clearly_short} / {self.short}",
            f"{self.early}",
            f"{self.lost}",
            f"{self.twice}",
            f"{self.rate:.0f}",
            f"{self.lag(0.5):.0f} / {self.lag(0.99):.0f}",
            f"{self.cpu * 1000:.1f}, {self.cpu / plain.cpu - 1:+.0%}",
            f"{self.server.cpu * 1000:.2f}",
            f"{self.server.scripts:.1f}",
            f"{self.server.commands:.1f}",
        ]


HEAD: Final = [
    "crawl", "interval", "overlap", "short", "early", "lost", "twice", "requests/s", "lag", "cpu", "server", "scripts",
    "commands",
]  # fmt: skip


def judge(crawl: Crawl) -> Row:
    """Compute the row of a crawl from the log of its hosts."""
    hosts, case = crawl.hosts, crawl.case
    good = [visit for visit in hosts.visits if not visit.retry_after]
    fetched = {(visit.host, visit.path) for visit in good}
    lasted = max(visit.end for visit in hosts.visits) - min(visit.start for visit in hosts.visits)
    row = Row(case, len(hosts.visits) / lasted)
    row.twice = len(good) - len(fetched)
    row.lost = hosts.count * hosts.pages - len(fetched)
    by_host: dict[int, list[Visit]] = {host: [] for host in range(hosts.count)}
    for visit in sorted(hosts.visits, key=lambda visit: visit.start):
        by_host[visit.host].append(visit)
    known = known_since(good, hosts)
    firsts: dict[str, float] = {}
    for visit in hosts.visits:
        firsts.setdefault(visit.agent, visit.start)
    for host, visits in by_host.items():
        for before, after in pairwise(visits):
            gap = after.start - before.start
            row.overlap += after.start < before.end
            row.short += gap < case.interval
            row.clearly_short += gap < case.interval - CLEARLY
            row.early += after.start < before.end + before.retry_after
        row.lags += lags(visits, known[host], case, since=max(firsts.values()))
    row.cpu = median([stats["cpu"] for stats in crawl.stats if stats["cpu"]] or [0.0])
    row.server = Usage(*(used / len(hosts.visits) for used in crawl.server))
    if case.kind == TUBES:
        # A stronger rule than "short": a request may start an interval after the end of the previous one.
        rest = case.interval if case.interval_from == "response" else 0.0
        row.broken = hosts.violations(rest) + ["pages are lost"] * bool(row.lost)
    return row


def known_since(good: list[Visit], hosts: Hosts) -> dict[int, dict[str, float]]:
    """Return the time when the first link to each page had been fetched, by host and path."""
    known: dict[int, dict[str, float]] = {host: {"/p/0": 0.0} for host in range(hosts.count)}
    for visit in sorted(good, key=lambda visit: visit.end):
        number = int(visit.path[3:])
        known[(visit.host + 1) % hosts.count].setdefault(visit.path, visit.end)
        for page in (2 * number + 1, 2 * number + 2):
            known[visit.host].setdefault(f"/p/{page}", visit.end)
    return known


def lags(visits: list[Visit], known: dict[str, float], case: Case, since: float) -> Iterator[float]:
    """Yield the lag of each request to a host except the first one."""
    waiting = dict(known)
    for before, after in pairwise(visits):
        if not before.retry_after:
            waiting.pop(before.path, None)
        if after.path not in waiting or not before.end or before.end < since:
            continue
        free = before.end + max(case.interval, before.retry_after)
        if case.kind != TUBES or case.interval_from == "start":
            free = max(before.end + before.retry_after, before.start + case.interval)
        yield max(after.start - max(free, min(waiting.values())), 0.0)


def main() -> None:
    """Run the crawls, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crawl.spiders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    size = QUICK if parser.parse_args().quick else DEFAULT
    if any(case.kind == SCRAPY_REDIS for case in size.cases):
        python_of(PACKAGES)
    rows: list[Row] = []
    table: list[dict[str, str]] = []
    print(f"{size.hosts} hosts with {size.pages} pages each; {machine()}, Scrapy {scrapy.__version__}\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for case in size.cases:
        refusals: list[Reply] = [(429, {"Retry-After": "1"}, ""), (503, {"Retry-After": "1"}, "")]
        hosts_and_pages = (case.hosts, 2) if case.hosts else (size.hosts, size.pages)
        special = {(host, "/p/1"): refusals[:] for host in range(3, hosts_and_pages[0], 10)}
        with (
            LocalServer(appendonly="yes") as server,
            serve(Hosts(*hosts_and_pages, special=special), by_address=True) as hosts,
        ):
            rows.append(judge(crawl(case, hosts, server)))
        plain = next((row for row in rows if row.case == Case(PLAIN, 1, case.interval)), rows[0])
        table.append(dict(zip(HEAD, rows[-1].cells(plain), strict=True)))
        print(f"| {' | '.join(table[-1].values())} |", flush=True)
    if size is DEFAULT:
        keep(Path(__file__).parent, table, versions={"Scrapy": scrapy.__version__} | installed())
    for row in rows:
        for problem in row.broken:
            print(f"{row.case.name}: {problem}", file=sys.stderr)
    sys.exit(any(row.broken for row in rows))


if __name__ == "__main__":
    main()
