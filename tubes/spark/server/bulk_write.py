"""Writes: many tasks put by several processes, at once or all or none.

A `Writer` puts chunks as they come, or brings them to the server under the name of a write. Nobody sees what was
brought until one process, which has heard from all that they are done, seals the write: from then on it is put, chunk
by chunk, each by one script that also takes it away from what was brought. Whoever seals the same write again, or a
later one in the same name, goes on where a process died; what was put is never put again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from uuid import uuid4

from tubes.errors import TubeFull, Unreadable, WriteAborted
from tubes.redis import task_codec, validation
from tubes.redis.scripts.msgpack_array import packed
from tubes.redis.scripts.replies import bytes_of, list_of, number_of
from tubes.redis.transport.wire import ErrorReply, Reply, Word

if TYPE_CHECKING:
    from tubes.backend.interface import Options
    from tubes.redis.batch_port import BatchPort
    from tubes.sync import Task, Tube

#: Tasks that one script puts, so that it holds the server for some milliseconds only; and bytes.
CHUNK: Final = 1_000
CHUNK_WITH_LANES: Final = 200
BYTES: Final = 1_000_000
#: For how long what was brought stays if nobody seals or gives up its write, in milliseconds.
STAY: Final = 24 * 3600 * 1000
#: For how long a write is known, one that is sealed with what was brought for it.
KNOWN: Final = 30 * 24 * 3600 * 1000
#: Chunks that one script looks at.
_LOOKS: Final = 1_000
#: Seconds after which a write that was sealed and is not put may be somebody's who is gone.
ABANDONED: Final = 60
#: Seconds between two looks for room in a tube that is full.
_POLL: Final = 0.05


class Staged(NamedTuple):
    """A chunk that was brought: its name, how many tasks and words it has, if any has a key, for which tube it is."""

    name: str
    tasks: int
    words: int
    keyed: bool
    born: str


class Head(NamedTuple):
    """What the scripts read of tasks with the same options before their data."""

    words: tuple[Word, ...]
    keyed: bool


class Words(NamedTuple):
    """A chunk of tasks as the scripts read it."""

    words: list[Word]
    tasks: int
    keyed: bool


class Writer:
    """Puts tasks whose data are encoded and whose options are checked already. For threads.

    >>> import tubes
    >>> from tubes.spark.server.bulk_write import Writer
    >>> with tubes.connect("redis://localhost") as queue:
    ...     writer = Writer(queue.create_tube("rows"))
    ...     rows = [(writer.head({}), [b'"a"', b'"b"']), (writer.head({"key": "c"}), [b'"c"'])]
    ...     brought = [writer.stage("load-7", chunk) for chunk in writer.chunks(rows)]
    ...     writer.publish("load", 7, brought)
    ...     writer.publish("load", 7, brought)  # again: it was done
    3
    0
    """

    def __init__(self, tube: Tube) -> None:
        self.tube: Final = tube
        self._port: Final[BatchPort[Task]] = cast("BatchPort[Task]", tube._port)
        self._shared_tube: Final = self._port.shared
        self._lanes: Final = self._shared_tube.driver.lane is not None

    # -- chunks --------------------------------------------------------------------------------------------------------

    def head(self, options: Options) -> Head:
        """Options, as `Driver.check_put` checked them, as the scripts read them."""
        new = task_codec.write(self._shared_tube.driver, self._shared_tube.options, options)
        words = (new.flags, new.due, new.pri, new.lane, new.header)
        keyed = "key" in options
        return Head((*words, *self._port._key_words(options)) if keyed else words, keyed)

    def buried(self, reason: str) -> Head:
        """Those of tasks that are buried as they are put, for this reason."""
        plain = self.head({})
        return Head((*plain.words, reason.encode("utf-8", "surrogatepass"), b"bury"), keyed=True)

    def chunks(self, runs: Iterable[tuple[Head, list[bytes]]], most: int = CHUNK) -> Iterator[Words]:
        """Runs of tasks with the same options in chunks of at most `most`; where there are lanes or keys of fewer."""
        if self._lanes:
            most = min(most, CHUNK_WITH_LANES)
        most = min(most, self._shared_tube.options.get("capacity") or most)
        words: list[Word] = []
        count = size = 0
        keyed = False
        for head, raws in runs:
            at = 0
            while at < len(raws):
                limit = min(most, CHUNK_WITH_LANES) if head.keyed or (keyed and count) else most
                some = raws[at : at + max(limit - count, 1)]
                length = sum(map(len, some))
                while len(some) > 1 and size + length > BYTES:
                    some = some[: len(some) // 2]
                    length = sum(map(len, some))
                if count and (count >= limit or size + length > BYTES or (head.keyed and not keyed)):
                    yield Words(words, count, keyed)
                    words, count, size = [], 0, 0
                    continue
                keyed = head.keyed or (keyed and count > 0)
                # Among those with keys the others say that they have none.
                words += (len(some), *head.words, *(("", "") if keyed and not head.keyed else ()))
                words += some
                at += len(some)
                count += len(some)
                size += length
        if count:
            yield Words(words, count, keyed)

    # -- at once -------------------------------------------------------------------------------------------------------

    def put(self, chunk: Words, timeout: float = 0.0) -> None:
        """Put a chunk, all of it or nothing. Waits `timeout` seconds for room, then `TubeFull`."""
        self._put(chunk.keyed, chunk.tasks, "", len(chunk.words), chunk.words, timeout)

    def _put(self, keyed: bool, tasks: int, name: str, count: int, words: Sequence[Word], timeout: float) -> int:
        """Put a chunk; how many tasks it had: none if it was brought, and is put already."""
        room = self._shared_tube.options.get("capacity") or ""
        parts = (f"staged:{name}",) if name else ()
        ends = time.monotonic() + timeout
        while True:
            flow = self._port.ask(
                "put_keyed" if keyed else "put_many", tasks, name, count, room, "", "", *words, parts=parts
            )
            reply = self._port.run(flow)
            lane_full = type(reply) is ErrorReply and reply.code == "LANEFULL"
            if reply is not None and not lane_full:
                return 0 if type(reply) is ErrorReply else tasks
            if time.monotonic() >= ends:
                if type(reply) is ErrorReply:
                    raise self._port.lane_full(reply)
                raise TubeFull(tube=self._shared_tube.name, capacity=room, tasks=tasks)
            time.sleep(_POLL)

    # -- all or none ---------------------------------------------------------------------------------------------------

    def stage(self, write: str, chunk: Words) -> Staged:
        """Bring a chunk for a write. Raises `WriteAborted` if that was given up."""
        name = uuid4().hex
        parts = (f"chunks:{write}", f"staged:{name}")
        born = self._call("write_stage", write, name, STAY, packed(chunk.words), parts=parts)
        return Staged(name, chunk.tasks, len(chunk.words), chunk.keyed, bytes_of(born).decode())

    def publish(self, name: str, number: int, brought: Iterable[Staged], timeout: float = 0.0) -> int:
        """Put what was brought for the write `name-number`; how many tasks that put.

        Writes of one name come in the order of their numbers, each once: one that was done, or has a lower number than
        one that was, puts nothing. One that a process has left unfinished is finished first.
        """
        count = self._finish_others()
        plan = list(brought)
        gone = self._keep(plan)
        while (sealed := self._seal(name, number, plan, gone)) is not None:
            count += self._finish(name, *sealed, KNOWN, timeout)
        self.clean(f"{name}-{number}", put=True)
        return count

    def publish_once(self, write: str, brought: Iterable[Staged], timeout: float = 0.0) -> int:
        """Put what was brought for a write that nobody does again, of which nothing is kept; how many tasks that put.

        Where the tube has a capacity there must be room for all of it, within `timeout` seconds, before any is put.
        """
        count = self._finish_others()
        plan = list(brought)
        self._wait_for_room(sum(chunk.tasks for chunk in plan), timeout)
        sealed = self._seal(write, 0, plan, self._keep(plan))
        if sealed is not None:
            count += self._finish(write, *sealed, "", timeout)
        self.clean(write, put=True)
        return count

    def _wait_for_room(self, tasks: int, timeout: float) -> None:
        room = self._shared_tube.options.get("capacity")
        ends = time.monotonic() + timeout
        while room and tasks + self.tube.statistics().tasks["total"] > room:
            if tasks > room or time.monotonic() >= ends:
                raise TubeFull(tube=self._shared_tube.name, capacity=room, tasks=tasks)
            time.sleep(_POLL)

    def _keep(self, plan: list[Staged]) -> int:
        """What was brought stays until it is put; returns how many chunks of it are gone."""
        gone = 0
        for first in range(0, len(plan), _LOOKS):
            names = [some.name for some in plan[first : first + _LOOKS]]
            parts = tuple(f"staged:{chunk}" for chunk in names)
            gone += number_of(self._call("write_keep", KNOWN, *names, parts=parts))
        return gone

    def _seal(self, name: str, number: int, plan: list[Staged], gone: int) -> tuple[str, list[str]] | None:
        """Decide what is put; returns the number of the write that is to be finished, and its chunks."""
        words = " ".join(f"{some.name} {some.tasks} {some.words} {some.keyed:d}" for some in plan)
        # Of chunks of two tubes of this name, one after the other, those of the first are none of the second's.
        born = " ".join({some.born for some in plan})
        reply = self._call("write_seal", name, number, words, gone, KNOWN, born, parts=_of(name))
        if reply is None:
            return None
        with validation.reading(self._what(name)):
            sealed, _, chunks = bytes_of(reply).decode().partition(" ")
            return sealed, chunks.split()

    def _finish(self, name: str, number: str, chunks: list[str], known: int | str, timeout: float) -> int:
        count = 0
        with validation.reading(self._what(name)):
            plan = [
                (keyed == "1", int(tasks), chunk, int(words))
                for chunk, tasks, words, keyed in zip(*(iter(chunks),) * 4, strict=True)
            ]
        for one in plan:
            count += self._put(*one, (), timeout)
        is_known = self._call("write_done", name, number, known, parts=_of(name))
        # Else others have put the rest, and said so.
        if not is_known and count < sum(tasks for _, tasks, _, _ in plan):
            raise WriteAborted(write=name, tube=self._shared_tube.name, why="the server has lost the uploaded tasks")
        return count

    def _finish_others(self) -> int:
        """Finish writes that somebody sealed a while ago, and has not put: who did it may be gone."""
        count = 0
        others = self._call("write_others", ABANDONED, parts=("sealed",))
        for name, number, chunks in zip(*(map(bytes_of, list_of(others)),) * 3, strict=True):
            # One for which there is no room, or that is lost, is none of this write's business.
            with suppress(TubeFull, WriteAborted):
                try:
                    with validation.reading(self._what(name)):
                        words = name.decode(), number.decode(), chunks.decode().split()
                    count += self._finish(*words, KNOWN, 0.0)
                except Unreadable as error:
                    self._shared_tube.store.strangers.leave_out(
                        f"tube {self._shared_tube.name!r}", {error.facts["what"]: error}
                    )
        return count

    def _what(self, name: str | bytes) -> str:
        return f"tube {self._shared_tube.name!r}: write {name!r}"

    def clean(self, write: str, *, aborted: bool = False, put: bool = False) -> None:
        """Remove what was brought for a write.

        `aborted`: what comes later is refused. `put`: whatever of it is going to be put is; else what is sealed stays.
        """
        left = 1
        while left:
            words = (STAY if aborted else "", "" if put else STAY)
            left = number_of(self._call("write_clean", write, *words, parts=(f"chunks:{write}",)))

    def _call(self, verb: str, *args: Word, parts: tuple[str, ...] = ()) -> Reply:
        reply = self._port.run(self._port.ask_alone(verb, *args, parts=parts))
        if type(reply) is ErrorReply:
            raise WriteAborted(write=args[0], tube=self._shared_tube.name, why=str(reply).partition(" ")[2])
        return reply


def _of(name: str) -> tuple[str, ...]:
    """What a sealed write uses besides what a tube always has."""
    return (f"written:{name}", "sealed")
