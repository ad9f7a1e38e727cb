"""Streams: take the tasks of a tube in numbered batches that outlive the process that took them.

A stream has a name. The function that takes tasks for it also records them on the server, batch by batch, in chunks of
bounded size. The next process that opens the stream, after a crash or while another one still runs, finds the batches
that are not done, and fences off the others. All processes that open a stream share one session, which holds its tasks.
When no process runs, the lease of this session limits how long the stream keeps its tasks; the ttr of tasks does not.
"""

from __future__ import annotations

import logging
from hashlib import sha1
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from tubes.drivers.options import SECOND, positive, text
from tubes.errors import StreamFenced, TubeNotFound
from tubes.partitions.port import find_tube
from tubes.redis.bulk import (
    IDLE,
    TAKES_WITH_LANES,
    BulkTube,
    ErrorReply,
    Reply,
    Word,
    bytes_of,
    join_session,
    list_of,
    number_of,
    pack,
    reading,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tubes.sync import Queue, Tube

_log = logging.getLogger("tubes")
#: Maximum number of tasks per call.
CHUNK: Final = 1_000
CHUNK_WITH_LANES: Final = TAKES_WITH_LANES
#: Tasks in the first take if bytes are limited.
_FIRST: Final = 20


class Chunk(NamedTuple):
    """Tasks taken together: their ids, their attempts including this take, and their take numbers."""

    ids: list[int]
    attempts: list[int]
    takes: list[int]

    @classmethod
    def parse(cls, reply: bytes) -> Chunk:
        """Parse a chunk in the form in which the functions record it."""
        ids, attempts, takes = (list(map(int, words.split())) for words in reply.split(b":"))
        size = len(ids)
        return cls(ids, attempts * size if len(attempts) == 1 else attempts, takes * size if len(takes) == 1 else takes)


class Claim(NamedTuple):
    """A handle by which executors read the batches of a stream.

    It is valid until another process opens the stream, or the tube is dropped.
    """

    stream: str
    epoch: bytes
    born: bytes

    def skip(self, tube: Tube, takes: Sequence[tuple[int, int]]) -> None:
        """Record tasks that were not delivered, by id and take number, so that an ack of their batch does not end them.

        Raises `StreamFenced`. Without this record an ack would end them: it also ends tasks that are ready again and
        not taken by another consumer, such as a task that was buried when the batch was read and has been kicked since.
        """
        for first in range(0, len(takes), CHUNK):
            words = [f"{id}.{take}" for id, take in takes[first : first + CHUNK]]
            reply = BulkTube(tube).call("stream_skip", self.stream, self.epoch, IDLE, *words)
            if type(reply) is ErrorReply:
                raise StreamFenced(stream=self.stream, tube=tube.name)

    def skipped(self, tube: Tube) -> frozenset[tuple[int, int]]:
        """Return the tasks passed to `skip`: a second read of the batch must also skip them."""
        bulk = BulkTube(tube)
        (takes,) = bulk.run_commands(pack("SMEMBERS", f"{bulk.key}:skipped:{self.stream}"))
        with reading(f"stream {self.stream!r} of tube {tube.name!r}"):
            parts = (bytes_of(take).partition(b".") for take in list_of(takes))
            return frozenset((int(id), int(take)) for id, _, take in parts)

    def note_slots(self, tube: Tube, slots: int) -> None:
        """Store the number of Spark tasks that run at a time, for the driver that plans partitions."""
        BulkTube(tube).call("stream_slots", self.stream, self.epoch, slots)

    def check(self, tube: Tube) -> None:
        """Raise `StreamFenced` if another process has opened the stream, `TubeNotFound` if the tube was replaced."""
        bulk = BulkTube(tube)
        epoch, born = bulk.run_commands(
            pack("HGET", f"{bulk.key}:stream:{self.stream}", "epoch"), pack("HGET", bulk.key, "born")
        )
        if born != self.born:
            raise TubeNotFound(name=tube.name)
        if epoch != self.epoch:
            raise StreamFenced(stream=self.stream, tube=tube.name)


class Stream:
    """A stream that this process has opened. Blocking; each call takes some round trips.

    `take` with the number of an open batch returns the same batch again. `ack` ends a batch; `retake` takes its tasks
    again that the lease has lost. Each method raises `StreamFenced` if another process has opened the stream since.

    >>> import tubes
    >>> from tubes.spark.server.streams import Stream
    >>> with tubes.connect("redis://localhost", session_ttl=60) as queue:
    ...     made = queue.create_tube("pages").put_many(range(5))
    ...     stream = Stream.open(queue, "pages", "nightly")
    ...     taken = stream.take(1, 3), stream.take(2, 3)
    ...     [[id for chunk in chunks for id in chunk.ids] for chunks in taken]
    ...     stream.ack(1)
    [[0, 1, 2], [3, 4]]
    3
    """

    def __init__(self, tube: Tube, name: str) -> None:
        self.tube: Final = tube
        self.name: Final = name
        self._bulk: Final = BulkTube(tube)
        #: True if the tube has lanes, where taken tasks block others of their lane.
        self.lanes: Final = self._bulk.driver.lane is not None
        self._chunk_size: Final = CHUNK_WITH_LANES if self.lanes else CHUNK
        self._epoch = b""
        #: The handle for executors.
        self.claim = Claim(name, b"", b"")
        #: The first batch that is not done, and the last batch taken.
        self.first, self.last = 1, 0
        #: Tasks of its batches that others took or ended, counted since this process opened the stream.
        self.left_out = 0
        #: Number of Spark tasks that run at a time, stored by executors; read by `progress`.
        self.slots: int | None = None
        #: The id after the last task taken.
        self._next = 0

    @classmethod
    def open(cls, queue: Queue, tube: str, name: str, *, shares: bool = False) -> Stream:
        """Continue the stream of this name, or start it, and fence off the process that had it open.

        `queue` must be used by this stream alone, or with `shares` by streams of this name: it joins their session,
        which lives for `session_ttl` seconds after the process has ended. End it with `detach`: `close` would release
        the tasks that are not done.
        """
        text("stream", name)
        scope = "" if shares else tube.partition("#")[0]
        digest = sha1(f"{scope}\0{name}".encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
        # Other processes may use the same session, since replies are stored per caller. UUID version 5 marks a stream.
        join_session(queue, UUID(bytes=digest[:16], version=5).hex)
        stream = cls(find_tube(queue, tube), name)
        reply = stream._run("stream_open")
        with reading(f"stream {name!r} of tube {tube!r}"):
            epoch, first, last, born = bytes_of(reply).split()
            stream._epoch, stream.first, stream.last = epoch, int(first), int(last)
        stream.claim = Claim(name, epoch, born)
        return stream

    def take(self, batch: int, limit: int, max_bytes: int | None = None) -> list[Chunk]:
        """Take up to `limit` tasks as this batch, in chunks. Tasks taken earlier as this batch are all part of it.

        `max_bytes`: stop once the data reach this size, in bytes; the last task may exceed it.
        """
        positive("limit", limit)
        chunks: list[Chunk] = []
        if batch <= self.last:
            while (reply := self._run("stream_take", self._epoch, batch, len(chunks), 0, "")) is not None:
                chunks.append(self._chunk(reply))
            if chunks and len(chunks[-1].ids) < self._chunk_size:
                return chunks  # The batch is complete: the tube was empty after it.
            limit -= sum(len(chunk.ids) for chunk in chunks)
        count = size = 0
        while limit > 0:
            wanted = min(limit, self._chunk_size)
            room: Word = ""
            if max_bytes is not None:
                size += sum(map(self._size_of, chunks[count:]))
                count = len(chunks)
                room = max_bytes - size
                taken = sum(len(chunk.ids) for chunk in chunks)
                # Estimate the number of tasks from the sizes so far, so that the function reads few unneeded tasks.
                wanted = min(wanted, room * taken // size if size else _FIRST)
                if wanted <= 0:
                    break
            reply = self._run("stream_take", self._epoch, batch, len(chunks), wanted, room)
            if reply is None:
                break
            if self.first > self.last:
                self.first = batch
            self.last = max(self.last, batch)
            chunks.append(self._chunk(reply))
            self._next = chunks[-1].ids[-1] + 1
            limit -= len(chunks[-1].ids)
            if len(chunks[-1].ids) < wanted:
                break
        return chunks

    def _size_of(self, chunk: Chunk) -> int:
        key = f"{self._bulk.key}:tasks"
        sizes = self._bulk.run_commands(*(pack("HSTRLEN", key, id) for id in chunk.ids))
        return sum(map(number_of, sizes))

    def retake(self, batch: int, *, counts: bool = False) -> list[Chunk]:
        """Return the chunks of a batch. Tasks that the lease has lost are taken again if no other consumer took them.

        `counts`: losing the lease counts as an attempt, and a task without attempts left is buried.
        """
        chunks: list[Chunk] = []
        lost = 0
        while (reply := self._run("stream_retake", self._epoch, batch, len(chunks), "1" if counts else "")) is not None:
            missing, _, chunk = bytes_of(reply).partition(b" ")
            chunks.append(self._chunk(chunk))
            lost += int(missing)
        if lost:
            self.left_out += lost
            total = lost + sum(len(chunk.ids) for chunk in chunks)
            text = "stream %r of tube %r: batch %d lacks %d of its %d tasks, which others have taken or ended"
            _log.warning(text, self.name, self.tube.name, batch, lost, total)
        return chunks

    def progress(self) -> dict[str, float | None]:
        """Return the backlog: the number of tasks by state, `leftOut`, and `oldest` and `lease` in seconds.

        `oldest`: the age of the oldest ready task (in a tube without lanes, put after the last task taken). None: no
        task is ready, or thousands of other tasks are in front of it. `lease`: the remaining time for which the stream
        keeps its tasks.
        """
        tasks = self.tube.statistics().tasks
        counts: dict[str, float | None] = {state: tasks[state] for state in ("ready", "taken", "delayed", "buried")}
        age = self._bulk.call_in_session("oldest", self._next if self._next and not self.lanes else "")
        key = self._bulk.key
        looks = (
            pack("ZSCORE", f"{key}:leases", self._bulk.session_token),
            pack("HGET", f"{key}:stream:{self.name}", "slots"),
            pack("TIME"),
        )
        ends, slots, time = self._bulk.run_commands(*looks)
        with reading(f"stream {self.name!r} of tube {self.tube.name!r}"):
            self.slots = None if slots is None else int(bytes_of(slots))
            seconds, micros = map(int, map(bytes_of, list_of(time)))
            left = 0.0 if ends is None else float(bytes_of(ends)) / SECOND - seconds - micros / SECOND
            oldest = int(age) / SECOND if type(age) is bytes else None
        return {**counts, "oldest": oldest, "lease": round(max(left, 0.0), 3), "leftOut": self.left_out}

    def _chunk(self, reply: Reply) -> Chunk:
        with reading(f"stream {self.name!r} of tube {self.tube.name!r}"):
            return Chunk.parse(bytes_of(reply))

    def ack(self, batch: int) -> int:
        """End all batches up to this one, and return the number of tasks ended. Tasks that others took stay taken."""
        count = 0
        for number in range(self.first, min(batch, self.last) + 1):
            left = 1
            while left:
                left, done = map(int, bytes_of(self._run("stream_ack", self._epoch, number)).split())
                count += done
            self.first = number + 1
        return count

    def give_back(self, batch: int) -> None:
        """Return the tasks of the last batch, which was not delivered, as if they had not been taken."""
        while bytes_of(self._run("stream_return", self._epoch, batch)) != b"0":
            pass
        self.last = batch - 1

    def _run(self, script: str, *args: Word) -> Reply:
        reply = self._bulk.call_in_session(script, self.name, *args)
        if type(reply) is ErrorReply:
            raise StreamFenced(stream=self.name, tube=self.tube.name)
        return reply
