"""Bulk writes: many tasks put by several processes, either immediately or as one transaction.

A `Writer` puts chunks immediately, or stages them: it uploads them to the server under the name of a write, where they
are invisible to consumers. When all processes have staged their chunks, one process seals the write. From then on the
chunks are put one by one, each by a call that also removes it from the staged chunks. If the process dies, the next
process that seals this write, or a later write of the same name, continues: each chunk is put exactly once.

A write may have chunks of several tubes. Each is staged in its tube, and one more tube records the whole write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

from tubes.errors import ServerRefused, TubeFull, TubeNotFound, Unreadable, WriteAborted
from tubes.redis.bulk import BulkTube, ErrorReply, Reply, Word, bytes_of, list_of, number_of, pack, packed, reading

if TYPE_CHECKING:
    from tubes.backend.interface import Options
    from tubes.sync import Tube

#: Maximum tasks and bytes per call, so that it blocks the server for some milliseconds only.
CHUNK: Final = 1_000
CHUNK_WITH_LANES: Final = 200
BYTES: Final = 1_000_000
#: Expiry of staged chunks whose write is neither sealed nor aborted, in milliseconds.
CHUNK_EXPIRY: Final = 24 * 3600 * 1000
#: Expiry of the record of a write, and of the staged chunks of a sealed write, in milliseconds.
WRITE_EXPIRY: Final = 30 * 24 * 3600 * 1000
#: Maximum number of chunks in one `write_keep` call.
_KEEP_BATCH: Final = 1_000
#: Seconds after which a sealed, unfinished write counts as abandoned by its process.
ABANDONED: Final = 60
#: Seconds between two attempts to put into a full tube.
_POLL: Final = 0.05


class StagedChunk(NamedTuple):
    """A staged chunk.

    It has the name of its tube, a name, the number of its tasks and words, `keyed` (True if a task has a key), and the
    birth of its tube, which differs from that of earlier tubes of the same name.
    """

    tube: str
    name: str
    tasks: int
    words: int
    keyed: bool
    born: str


class Head(NamedTuple):
    """The words that precede the data of tasks with equal options in the arguments of a call, and their tube."""

    tube: str
    words: tuple[Word, ...]
    keyed: bool


class Words(NamedTuple):
    """A chunk of tasks in the form of function arguments."""

    words: list[Word]
    tasks: int
    keyed: bool


class Writer:
    """Puts tasks with encoded data and checked options. Blocking.

    >>> import tubes
    >>> from tubes.spark.server.bulk_write import Writer
    >>> with tubes.connect("redis://localhost") as queue:
    ...     writer = Writer(queue.create_tube("rows"))
    ...     rows = [(writer.head({}), [b'"a"', b'"b"']), (writer.head({"key": "c"}), [b'"c"'])]
    ...     staged = [writer.stage("load-7", chunk) for chunk in writer.chunks(rows)]
    ...     writer.publish("load", 7, staged)
    ...     writer.publish("load", 7, staged)  # no effect: the write is done
    3
    0
    """

    def __init__(self, tube: Tube, find: Callable[[str], Tube] | None = None) -> None:
        """`find`: return another tube by its name, for writes to several tubes."""
        self.tube: Final = tube
        self._find: Final = find
        #: A write to several tubes continues if one is dropped: the rows of this tube are dropped with it.
        self._tolerated: Final = (TubeNotFound,) if find else ()
        self._bulk: Final = BulkTube(tube)
        self._lanes: Final = self._bulk.driver.lane is not None

    # -- chunks --------------------------------------------------------------------------------------------------------

    def head(self, options: Options) -> Head:
        """Encode options that `Driver.check_put` has checked."""
        return Head(self.tube.name, self._bulk.put_words(options), "key" in options)

    def buried_head(self, reason: str) -> Head:
        """Encode the options of tasks that are put in the state buried, with this reason."""
        plain = self.head({})
        return Head(self.tube.name, (*plain.words, self._bulk.encode_reason(reason), b"bury"), keyed=True)

    def chunks(self, runs: Iterable[tuple[Head, list[bytes]]], max_tasks: int = CHUNK) -> Iterator[Words]:
        """Combine runs of tasks into chunks of at most `max_tasks`; smaller ones if the tasks have lanes or keys."""
        if self._lanes:
            max_tasks = min(max_tasks, CHUNK_WITH_LANES)
        max_tasks = min(max_tasks, self._bulk.options.get("capacity") or max_tasks)
        words: list[Word] = []
        count = size = 0
        keyed = False
        for head, raws in runs:
            start = 0
            while start < len(raws):
                limit = min(max_tasks, CHUNK_WITH_LANES) if head.keyed or (keyed and count) else max_tasks
                part = raws[start : start + max(limit - count, 1)]
                length = sum(map(len, part))
                while len(part) > 1 and size + length > BYTES:
                    part = part[: len(part) // 2]
                    length = sum(map(len, part))
                if count and (count >= limit or size + length > BYTES or (head.keyed and not keyed)):
                    yield Words(words, count, keyed)
                    words, count, size = [], 0, 0
                    continue
                keyed = head.keyed or (keyed and count > 0)
                # In a chunk with keys, tasks without a key have two empty words in its place.
                words += (len(part), *head.words, *(("", "") if keyed and not head.keyed else ()))
                words += part
                start += len(part)
                count += len(part)
                size += length
        if count:
            yield Words(words, count, keyed)

    # -- immediate writes ----------------------------------------------------------------------------------------------

    def put(self, chunk: Words, timeout: float = 0.0) -> None:
        """Put a chunk, all of it or nothing. Waits up to `timeout` seconds for room, then raises `TubeFull`."""
        self._put(chunk.keyed, chunk.tasks, "", len(chunk.words), chunk.words, timeout)

    def _put(self, keyed: bool, tasks: int, name: str, count: int, words: Sequence[Word], timeout: float) -> int:
        """Put a chunk, and return the number of its tasks, or 0 for a staged chunk that has already been put."""
        room = self._bulk.options.get("capacity") or ""
        deadline = time.monotonic() + timeout
        while True:
            script = "put_keyed" if keyed else "put_many"
            reply = self._bulk.call_in_session(script, tasks, name, count, room, "", "", *words)
            lane_full = type(reply) is ErrorReply and reply.code == "LANEFULL"
            if reply is not None and not lane_full:
                return 0 if type(reply) is ErrorReply else tasks
            if time.monotonic() >= deadline:
                if type(reply) is ErrorReply:
                    raise self._bulk.lane_full(reply)
                raise TubeFull(tube=self._bulk.name, capacity=room, tasks=tasks)
            time.sleep(_POLL)

    # -- transactional writes ------------------------------------------------------------------------------------------

    def stage(self, write: str, chunk: Words) -> StagedChunk:
        """Upload a chunk for a write. Raises `WriteAborted` if the write was aborted."""
        name = uuid4().hex
        born = self._call("write_stage", write, name, CHUNK_EXPIRY, packed(chunk.words))
        return StagedChunk(self.tube.name, name, chunk.tasks, len(chunk.words), chunk.keyed, bytes_of(born).decode())

    def publish(self, name: str, number: int, chunks: Iterable[StagedChunk], timeout: float = 0.0) -> int:
        """Put the staged chunks of the write `name-number`, and return the number of tasks put.

        Writes of one name are put once, in the order of their numbers: a write has no effect if it, or one with a
        higher number, is done. Writes that a process has left unfinished are finished first.
        """
        count = self._finish_others()
        plan = _by_tube(chunks)
        missing = self._extend_expiry(plan)
        while (sealed := self._seal(name, number, plan, missing)) is not None:
            count += self._finish(name, *sealed, WRITE_EXPIRY, timeout)
        self.clean_all(f"{name}-{number}", (chunk.tube for chunk in plan), put=True)
        return count

    def is_sealed(self, name: str, number: int) -> bool:
        """Return True if a write of this name and number, or a higher one, is done or sealed: its rows are known."""
        write = f"{self._bulk.key}:written:{name}"
        commands = [pack("HGET", write, field) for field in ("born", "last", "number")]
        born, *numbers, current = self._bulk.run_commands(*commands, pack("HGET", self._bulk.key, "born"))
        with reading(self._describe(name)):
            return born == current and any(int(bytes_of(last)) >= number for last in numbers if last is not None)

    def publish_once(self, write: str, chunks: Iterable[StagedChunk], timeout: float = 0.0) -> int:
        """Put the staged chunks of a write that is never repeated, and return the number of tasks put.

        The server keeps no record of such a write. If the tube has a capacity, wait up to `timeout` seconds until all
        tasks fit, then raise `TubeFull`.
        """
        count = self._finish_others()
        plan = _by_tube(chunks)
        deadline = time.monotonic() + timeout
        for tube, part in groupby(plan, key=_tube_of):
            self._of(tube)._wait_for_room(sum(chunk.tasks for chunk in part), deadline)
        sealed = self._seal(write, 0, plan, self._extend_expiry(plan))
        if sealed is not None:
            count += self._finish(write, *sealed, "", timeout)
        self.clean_all(write, (chunk.tube for chunk in plan), put=True)
        return count

    def _of(self, tube: str) -> Writer:
        """Return the writer of a tube of this write."""
        return self if tube == self.tube.name or self._find is None else Writer(self._find(tube))

    def _born(self) -> str:
        (born,) = self._bulk.run_commands(pack("HGET", self._bulk.key, "born"))
        return bytes_of(born).decode()

    def _wait_for_room(self, tasks: int, deadline: float) -> None:
        room = self._bulk.options.get("capacity")
        while room and tasks + self.tube.statistics().tasks["total"] > room:
            if tasks > room or time.monotonic() >= deadline:
                raise TubeFull(tube=self._bulk.name, capacity=room, tasks=tasks)
            time.sleep(_POLL)

    def _extend_expiry(self, plan: list[StagedChunk]) -> int:
        """Extend the expiry of the chunks to that of the write, and return the number of missing chunks."""
        missing = 0
        for tube, part in groupby(plan, key=_tube_of):
            writer, chunks = self._of(tube), [*part]
            if writer is not self:
                # Chunks staged for an earlier tube of this name must not be put into the present one. The seal checks
                # those of its own tube.
                born = writer._born()
                missing += sum(chunk.born != born for chunk in chunks)
            for first in range(0, len(chunks), _KEEP_BATCH):
                names = [chunk.name for chunk in chunks[first : first + _KEEP_BATCH]]
                missing += number_of(writer._call("write_keep", WRITE_EXPIRY, *names))
        return missing

    def _seal(self, name: str, number: int, plan: list[StagedChunk], missing: int) -> tuple[str, list[str]] | None:
        """Fix the chunks of a write, and return the number and chunks of the next write to finish, or None."""
        words = " ".join(
            f"{chunk.name} {chunk.tasks} {chunk.words} {chunk.keyed:d} {quote(chunk.tube)} {chunk.born}"
            for chunk in plan
        )
        born = " ".join({chunk.born for chunk in plan if chunk.tube == self.tube.name})
        reply = self._call("write_seal", name, number, words, missing, WRITE_EXPIRY, born)
        if reply is None:
            return None
        with reading(self._describe(name)):
            sealed, _, chunks = bytes_of(reply).decode().partition(" ")
            return sealed, chunks.split()

    def _finish(self, name: str, number: str, chunks: list[str], expiry: int | str, timeout: float) -> int:
        count = 0
        with reading(self._describe(name)):
            plan = [
                (unquote(tube), born, (keyed == "1", int(tasks), chunk, int(words)))
                for chunk, tasks, words, keyed, tube, born in zip(*(iter(chunks),) * 6, strict=True)
            ]
        full: TubeFull | None = None
        for (tube, born), part in groupby(plan, key=itemgetter(0, 1)):
            with suppress(*self._tolerated):
                writer = self._of(tube)
                if writer is not self and writer._born() != born:
                    continue
                try:
                    for *_, chunk_args in part:
                        count += writer._put(*chunk_args, (), timeout)
                except TubeFull as error:
                    full = error
        if full is not None:
            raise full
        is_done = self._call("write_done", name, number, expiry)
        # If the write is already done, other processes have put the remaining chunks.
        if not is_done and count < sum(args[1] for *_, args in plan):
            raise WriteAborted(write=name, tube=self._bulk.name, why="the server has lost the uploaded tasks")
        return count

    def _finish_others(self) -> int:
        """Finish writes sealed more than `ABANDONED` seconds ago, and return the number of tasks put."""
        count = 0
        others = self._call("write_others", ABANDONED)
        for name, number, chunks in zip(*(map(bytes_of, list_of(others)),) * 3, strict=True):
            # Other writes that do not fit, whose chunks are lost, or whose tubes this user may not use, must not make
            # this one fail.
            with suppress(TubeFull, WriteAborted, ServerRefused):
                try:
                    with reading(self._describe(name)):
                        words = name.decode(), number.decode(), chunks.decode().split()
                    count += self._finish(*words, WRITE_EXPIRY, 0.0)
                except Unreadable as error:
                    self._bulk.leave_out(error)
        return count

    def _describe(self, name: str | bytes) -> str:
        return f"tube {self._bulk.name!r}: write {name!r}"

    def clean_all(self, write: str, tubes: Iterable[str], *, aborted: bool = False, put: bool = False) -> None:
        """Remove the staged chunks of a write from this tube and these tubes: see `clean`."""
        for tube in sorted({self.tube.name, *tubes}):
            with suppress(*self._tolerated):
                self._of(tube).clean(write, aborted=aborted, put=put)

    def clean(self, write: str, *, aborted: bool = False, put: bool = False) -> None:
        """Remove the staged chunks of a write.

        `aborted`: reject chunks staged later, with `WriteAborted`. `put`: the write has been put, so remove all chunks;
        otherwise chunks of a sealed write stay.
        """
        remaining = 1
        while remaining:
            words = (CHUNK_EXPIRY if aborted else "", "" if put else CHUNK_EXPIRY)
            remaining = number_of(self._call("write_clean", write, *words))

    def _call(self, script: str, *args: Word) -> Reply:
        reply = self._bulk.call(script, *args)
        if type(reply) is ErrorReply:
            raise WriteAborted(write=args[0], tube=self._bulk.name, why=str(reply).partition(" ")[2])
        return reply


_tube_of: Final = attrgetter("tube")


def _by_tube(chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
    """Sort chunks by tube. Those of one tube keep their order."""
    return sorted(chunks, key=_tube_of)
