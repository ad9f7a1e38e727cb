"""Streams: tasks of one tube taken in numbered batches, which outlive the process that took them.

A stream has a name. What it takes is written down on the server by the script that takes it: batch by batch, in chunks
of bounded size. Whoever opens the stream next, after a crash or while the one before still runs, finds the batches that
are not done, and is the only one who goes on. The tasks are held by a session that all who open the stream share; its
lease, not the ttr of the tasks, says for how long they stay the stream's when nobody is there.
"""

from __future__ import annotations

import logging
from hashlib import sha1
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from uuid import UUID

from tubes.drivers.options import SECOND, positive, text
from tubes.errors import StreamFenced, TubeNotFound
from tubes.redis import validation
from tubes.redis.scripts.assembly import IDLE, TAKES_WITH_LANES
from tubes.redis.scripts.replies import bytes_of, list_of, number_of
from tubes.redis.transport.wire import ErrorReply, Reply, Word, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tubes.redis.connection import Connection
    from tubes.redis.port import Port
    from tubes.sync import Queue, Task, Tube

_log = logging.getLogger("tubes")
#: Tasks that one script takes or acks.
CHUNK: Final = 1_000
CHUNK_WITH_LANES: Final = TAKES_WITH_LANES
#: Tasks that are taken first where bytes are limited.
_FIRST: Final = 20


class Chunk(NamedTuple):
    """Tasks that were taken together: their ids, the number of attempts that each take made it, and the takes."""

    ids: list[int]
    attempts: list[int]
    takes: list[int]

    @classmethod
    def of(cls, reply: bytes) -> Chunk:
        """Read a chunk from what the scripts write down of it."""
        ids, attempts, takes = (list(map(int, words.split())) for words in reply.split(b":"))
        size = len(ids)
        return cls(ids, attempts * size if len(attempts) == 1 else attempts, takes * size if len(takes) == 1 else takes)


class Claim(NamedTuple):
    """A stream for those who read what was taken: until another one opens it, or its tube is dropped."""

    stream: str
    epoch: bytes
    born: bytes

    def skip(self, tube: Tube, takes: Sequence[tuple[int, int]]) -> None:
        """These were left out, by id and take number: an ack of their batch does not end them. Raises `StreamFenced`.

        A task that comes back by itself counts as the stream's own as long as nobody else has taken it; but not if it
        was buried, say, when its batch was read, and is kicked before that is acked.
        """
        parts = (f"skipped:{self.stream}", f"stream:{self.stream}")
        for first in range(0, len(takes), CHUNK):
            some = [f"{id}.{take}" for id, take in takes[first : first + CHUNK]]
            port = cast("Port[Task]", tube._port)
            flow = port.ask_alone("stream_skip", self.stream, self.epoch, IDLE, *some, parts=parts)
            if port.run(flow).__class__ is ErrorReply:
                raise StreamFenced(stream=self.stream, tube=tube.name)

    def skipped(self, tube: Tube) -> frozenset[tuple[int, int]]:
        """What `skip` was told: whoever reads a batch again leaves the same out."""
        port = cast("Port[Task]", tube._port)
        (takes,) = port.run(port.look(pack("SMEMBERS", f"{port.shared.key}:skipped:{self.stream}")))
        with validation.reading(f"stream {self.stream!r} of tube {tube.name!r}"):
            parts = (bytes_of(take).partition(b".") for take in list_of(takes))
            return frozenset((int(id), int(take)) for id, _, take in parts)

    def note_slots(self, tube: Tube, slots: int) -> None:
        """Tell the one who plans for how many at a time."""
        port = cast("Port[Task]", tube._port)
        port.run(port.ask_alone("stream_slots", self.stream, self.epoch, slots, parts=(f"stream:{self.stream}",)))

    def check(self, tube: Tube) -> None:
        """Raises `StreamFenced` if another one goes on with it, `TubeNotFound` if this is another tube of its name."""
        port = cast("Port[Task]", tube._port)
        key = port.shared.key
        looks = pack("HGET", f"{key}:stream:{self.stream}", "epoch"), pack("HGET", key, "born")
        epoch, born = port.run(port.look(*looks))
        if born != self.born:
            raise TubeNotFound(name=tube.name)
        if epoch != self.epoch:
            raise StreamFenced(stream=self.stream, tube=tube.name)


class Stream:
    """A stream, as the one who goes on with it sees it. For threads; each call is some round trips.

    A batch is `take`n once: again with the same number it is the same one, if that is not done. `ack` ends it, `retake`
    takes what its lease has lost. Each raises `StreamFenced` when another one has opened the stream since.

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
        self._port: Final[Port[Task]] = cast("Port[Task]", tube._port)
        #: Whether its tasks keep others of their lane back.
        self.lanes: Final = self._port.shared.driver.lane is not None
        self._most: Final = CHUNK_WITH_LANES if self.lanes else CHUNK
        self._parts: Final = (f"stream:{name}", f"skipped:{name}")
        self._epoch = b""
        #: For those who read what was taken.
        self.claim = Claim(name, b"", b"")
        #: The first batch that is not done, and the last one that was taken.
        self.first, self.last = 1, 0
        #: How many tasks its batches had that others took or ended meanwhile, since this one has opened it.
        self.left_out = 0
        #: How many tasks Spark runs at a time, as executors have said, by the last `progress`.
        self.slots: int | None = None
        #: The id behind those that were taken last.
        self._next = 0

    @classmethod
    def open(cls, queue: Queue, tube: str, name: str) -> Stream:
        """Go on with the stream of this name, or begin it; whoever did it until now is fenced off.

        `queue` is for this stream alone: it becomes the stream's session, which lives for its `session_ttl` when the
        process is gone. Leave it by `detach`: `close` would give back what is not done.
        """
        text("stream", name)
        connection = cast("Connection", queue._connection)
        digest = sha1(f"{tube}\0{name}".encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
        # Others may speak for the same session: answers are kept by caller. By the version the scripts know a stream.
        connection.session.go_by(UUID(bytes=digest[:16], version=5).hex)
        stream = cls(queue.tube(tube), name)
        reply = stream._run("stream_open")
        with validation.reading(f"stream {name!r} of tube {tube!r}"):
            epoch, first, last, born = bytes_of(reply).split()
            stream._epoch, stream.first, stream.last = epoch, int(first), int(last)
        stream.claim = Claim(name, epoch, born)
        return stream

    def take(self, batch: int, limit: int, max_bytes: int | None = None) -> list[Chunk]:
        """Take up to `limit` tasks as this batch, in chunks. What was taken as it before is part of it, all of it.

        `max_bytes`: with so many bytes they are enough; the last one may go beyond.
        """
        positive("limit", limit)
        chunks: list[Chunk] = []
        if batch <= self.last:
            while (reply := self._run("stream_take", self._epoch, batch, len(chunks), 0, "")) is not None:
                chunks.append(self._chunk(reply))
            if chunks and len(chunks[-1].ids) < self._most:
                return chunks  # There was no more then.
            limit -= sum(len(chunk.ids) for chunk in chunks)
        count = size = 0
        while limit > 0:
            wanted = min(limit, self._most)
            room: Word = ""
            if max_bytes is not None:
                size += sum(map(self._size_of, chunks[count:]))
                count = len(chunks)
                room = max_bytes - size
                taken = sum(len(chunk.ids) for chunk in chunks)
                # A few tasks say how many more there may be: the script is to look at few for nothing.
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
        key = f"{self._port.shared.key}:tasks"
        sizes = self._port.run(self._port.look(*(pack("HSTRLEN", key, id) for id in chunk.ids)))
        return sum(map(number_of, sizes))

    def retake(self, batch: int, *, counts: bool = False) -> list[Chunk]:
        """The chunks of a batch; tasks of it that the lease has lost are taken again, if nobody else took them.

        `counts`: that the lease was over counts as an attempt of these, and one that had no more is buried.
        """
        chunks: list[Chunk] = []
        lost = 0
        while (reply := self._run("stream_retake", self._epoch, batch, len(chunks), "1" if counts else "")) is not None:
            less, _, known = bytes_of(reply).partition(b" ")
            chunks.append(self._chunk(known))
            lost += int(less)
        if lost:
            self.left_out += lost
            whole = lost + sum(len(chunk.ids) for chunk in chunks)
            text = "stream %r of tube %r: batch %d goes on without %d of its %d tasks: others have taken or ended them"
            _log.warning(text, self.name, self.tube.name, batch, lost, whole)
        return chunks

    def progress(self) -> dict[str, float | None]:
        """How much is behind the stream, in tasks by their state, and `leftOut`; in seconds `oldest` and `lease`.

        `oldest`: the age of the oldest task that is ready, in tubes without lanes among those that were put after what
        was taken; None: there is none, or thousands of others stand before it. `lease`: how long the stream would keep
        its tasks from now on.
        """
        tasks = self.tube.statistics().tasks
        counts: dict[str, float | None] = {state: tasks[state] for state in ("ready", "taken", "delayed", "buried")}
        age = self._port.run(self._port.ask("oldest", self._next if self._next and not self.lanes else ""))
        session = self._port.session
        key = self._port.shared.key
        looks = (
            pack("ZSCORE", f"{key}:leases", session.token if session else ""),
            pack("HGET", f"{key}:stream:{self.name}", "slots"),
            pack("TIME"),
        )
        ends, slots, time = self._port.run(self._port.look(*looks))
        with validation.reading(f"stream {self.name!r} of tube {self.tube.name!r}"):
            self.slots = None if slots is None else int(bytes_of(slots))
            seconds, micros = map(int, map(bytes_of, list_of(time)))
            left = 0.0 if ends is None else float(bytes_of(ends)) / SECOND - seconds - micros / SECOND
            oldest = int(age) / SECOND if type(age) is bytes else None
        return {**counts, "oldest": oldest, "lease": round(max(left, 0.0), 3), "leftOut": self.left_out}

    def _chunk(self, reply: Reply) -> Chunk:
        with validation.reading(f"stream {self.name!r} of tube {self.tube.name!r}"):
            return Chunk.of(bytes_of(reply))

    def ack(self, batch: int) -> int:
        """All batches up to this one are done; how many tasks that ended. Those that others took since are theirs."""
        count = 0
        for number in range(self.first, min(batch, self.last) + 1):
            left = 1
            while left:
                left, done = map(int, bytes_of(self._run("stream_ack", self._epoch, number)).split())
                count += done
            self.first = number + 1
        return count

    def _run(self, verb: str, *args: Word) -> Reply:
        reply = self._port.run(self._port.ask(verb, self.name, *args, parts=self._parts))
        if type(reply) is ErrorReply:
            raise StreamFenced(stream=self.name, tube=self.tube.name)
        return reply
