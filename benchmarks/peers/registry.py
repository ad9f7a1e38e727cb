"""The measured subjects: each way of using tubes or a peer, with its worker and its missing features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Family = Literal["tubes", "peer", "in process"]
#: A placeholder for the server that all peers on Redis use in a run.
REDIS: Final = "redis or valkey"


@dataclass(frozen=True)
class Subject:
    """One row."""

    name: str
    family: Family
    #: The module in `inside`, and the way to use it.
    module: str
    way: str = ""
    #: The packages to install with pip, the peer first; empty if nothing needs to be installed.
    packages: tuple[str, ...] = ()
    #: The name of a server in `servers`; empty for queues in process.
    server: str = ""
    #: A description of the consumer.
    worker: str = ""
    #: The missing features; empty for tubes.
    lacks: str = ""
    #: Tasks per round and measure, for about half a second.
    tasks: int = 1000
    #: False if this way differs from another one only in its worker, so that puts are not measured.
    puts: bool = True

    @property
    def key(self) -> str:
        """Return the name for tables."""
        return f"{self.name} on {self.server}" if self.family == "tubes" and self.server else self.name


def _tubes(server: str) -> list[Subject]:
    def subject_of(name: str, module: str, way: str, worker: str, *, puts: bool = False) -> Subject:
        return Subject(name, "tubes", module, way, (), server, worker, tasks=4000, puts=puts)

    return [
        subject_of("tubes, calls", "tubes_sync", "calls", "take, ack", puts=True),
        subject_of("tubes, a loop", "tubes_sync", "loop", "for task in tube"),
        subject_of("tubes, batches", "tubes_sync", "batches", "take_many, ack_many of 100"),
        subject_of("tubes, asyncio", "tubes_asyncio", "", "50 loops, async for", puts=True),
        subject_of("tubes, Worker, async", "tubes_sync", "coroutines", "10 at a time, async handler"),
        subject_of("tubes, Worker, threads", "tubes_sync", "threads", "10 at a time, plain handler"),
    ]


_ON_SERVERS: Final = (
    Subject(
        "beanstalkd",
        "peer",
        "beanstalkd",
        packages=("greenstalk",),
        server="beanstalkd",
        worker="greenstalk, reserve + delete",
        lacks="ttl, batches, utubes; asyncio",
        tasks=4000,
    ),
    Subject(
        "Tarantool queue",
        "peer",
        "tarantool_queue",
        packages=("tarantool",),
        server="tarantool",
        worker="take, ack",
        lacks="batches; asyncio",
        tasks=2000,
    ),
    Subject(
        "rq",
        "peer",
        "rq",
        packages=("rq", "redis", "hiredis"),
        server=REDIS,
        worker="rq worker, forks for each job",
        lacks="ttr, priorities within a queue, utubes; asyncio",
        tasks=60,
        puts=False,
    ),
    Subject(
        "rq, SimpleWorker",
        "peer",
        "rq",
        "simple",
        ("rq", "redis", "hiredis"),
        REDIS,
        "SimpleWorker: no fork",
        "as rq",
        tasks=500,
    ),
    Subject(
        "huey",
        "peer",
        "huey",
        packages=("huey", "redis", "hiredis"),
        server=REDIS,
        worker="huey_consumer, 1 thread",
        lacks="acks (a task is lost with its worker), ttr, batches, utubes; asyncio",
        tasks=2000,
    ),
    Subject(
        "dramatiq",
        "peer",
        "dramatiq",
        packages=("dramatiq[redis]", "redis", "hiredis"),
        server=REDIS,
        worker="dramatiq, 1 process, 8 threads",
        lacks="ttr, priorities among waiting tasks, batches, utubes; asyncio",
    ),
    Subject(
        "arq",
        "peer",
        "arq",
        packages=("arq", "redis", "hiredis"),
        server=REDIS,
        worker="arq, 10 at a time, polls every 0.5 s",
        lacks="priorities, batches, utubes; plain calls",
    ),
    Subject(
        "saq",
        "peer",
        "saq",
        packages=("saq[hiredis]", "redis", "typing-extensions"),  # imported by saq, but not among its requirements
        server=REDIS,
        worker="saq, 10 at a time",
        lacks="priorities, batches, utubes; plain calls",
    ),
    Subject(
        "taskiq, stream",
        "peer",
        "taskiq",
        "stream",
        ("taskiq-redis", "taskiq", "redis", "hiredis"),
        REDIS,
        "taskiq worker, 1 process, 100 at a time",
        "delays (except with a scheduler), priorities, batches, utubes; plain calls",
    ),
    Subject(
        "taskiq, list",
        "peer",
        "taskiq",
        "list",
        ("taskiq-redis", "taskiq", "redis", "hiredis"),
        REDIS,
        "the same",
        "acks, delays (except with a scheduler), priorities, batches, utubes; plain calls",
    ),
    Subject(
        "celery",
        "peer",
        "celery",
        packages=("celery[redis]", "redis", "hiredis"),
        server=REDIS,
        worker="celery worker, 1 process, prefetches 100",
        lacks="acks after the work (optional), batches, utubes; asyncio",
    ),
    Subject(
        "bullmq",
        "peer",
        "bullmq",
        packages=("bullmq", "redis", "hiredis"),
        server=REDIS,
        worker="Worker, 10 at a time",
        lacks="ttl, utubes; plain calls",
        tasks=500,
    ),
)


def _in_process(name: str, lacks: str, tasks: int = 50_000, package: str = "") -> Subject:
    family: Family = "in process"
    return Subject(name, family, "in_process", name, (package,) if package else (), lacks=lacks, tasks=tasks)


def _tube(way: str, tasks: int = 20_000) -> Subject:
    return Subject(f"tubes, {way}", "tubes", "in_process", way, tasks=tasks)


_IN_PROCESS: Final = (
    *(_tube(driver) for driver in ("fifo", "fifottl", "utube", "utubettl", "fifo, awaited")),
    _tube("a folder", 4000),
    _tube("a folder, sync=full", 500),
    _in_process("queue.Queue", "acks with release, delays, ttl, priorities; asyncio"),
    _in_process("queue.SimpleQueue", "acks, task_done, delays, ttl, priorities; asyncio", 200_000),
    _in_process("queue.PriorityQueue", "acks with release, delays, ttl; asyncio"),
    _in_process("asyncio.Queue", "acks with release, delays, ttl, priorities; threads"),
    _in_process("janus, sync", "acks with release, delays, ttl", 30_000, "janus"),
    _in_process("janus, async", "the same", 10_000, "janus"),
    _in_process("culsans, sync", "acks with release, delays, ttl", 30_000, "culsans"),
    _in_process("culsans, async", "the same", 10_000, "culsans"),
    _in_process("persist-queue", "delays, ttl, ttr, priorities", 1000, "persist-queue"),
    _in_process("litequeue", "delays, ttl, ttr, priorities; asyncio", 3000, "litequeue"),
    _in_process("persist-queue on disk", "delays, ttl, ttr, priorities", 500, "persist-queue"),
    _in_process("litequeue on disk", "delays, ttl, ttr, priorities; asyncio", 2000, "litequeue"),
    _in_process("huey on disk", "acks (a task is lost with its worker), ttr, batches; asyncio", 1000, "huey"),
)

SUBJECTS: Final = (*_tubes("valkey"), *_tubes("redis"), *_ON_SERVERS, *_IN_PROCESS)


def select_subjects(part: str | None) -> tuple[Subject, ...]:
    """Return the subjects whose names contain `part`, and those of tubes for comparison."""
    if part is None:
        return SUBJECTS
    named = [subject for subject in SUBJECTS if part.lower() in subject.key.lower()]
    inside = {subject.server == "" for subject in named}
    return tuple(
        subject
        for subject in SUBJECTS
        if subject in named or (subject.family == "tubes" and (subject.server == "") in inside)
    )
