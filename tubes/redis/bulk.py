"""The door of this folder for bulk operations: `tubes.spark` imports nothing else from it.

`BulkTube` runs functions and read-only commands on one tube. The other names read replies and stored tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from tubes.redis import task_codec
from tubes.redis.library.functions import IDLE, MOST_ATTEMPTS, TAKES, TAKES_WITH_LANES, is_timed
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.port.msgpack_array import packed
from tubes.redis.port.puts import key_words
from tubes.redis.task_codec import read as read_task
from tubes.redis.task_codec import read_done
from tubes.redis.transport.server import check_settings
from tubes.redis.transport.wire import ErrorReply, Reply, Word, pack
from tubes.redis.validation import WRONG, leave_out_task, reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tubes.backend.interface import AnyConnection, AnyPort, Options
    from tubes.backend.port import HasConnection, HasPort
    from tubes.errors import TubeFull, Unreadable
    from tubes.redis.connection import RedisConnection
    from tubes.redis.port.methods import TubePort

# fmt: off
__all__ = [
    "IDLE",
    "MOST_ATTEMPTS",
    "TAKES",
    "TAKES_WITH_LANES",
    "WRONG",
    "BulkTube",
    "ErrorReply",
    "Reply",
    "Word",
    "bytes_of",
    "check_settings",
    "join_session",
    "leave_out_task",
    "list_of",
    "number_of",
    "pack",
    "packed",
    "read_done",
    "read_task",
    "reading",
]
# fmt: on


class BulkTube:
    """A tube on a server, at the level of its functions and keys. Blocking. `tube`: a `sync.Tube`."""

    encode_reason = staticmethod(task_codec.encode_reason)

    def __init__(self, tube: HasPort[AnyPort]) -> None:
        self._port: Final = cast("TubePort", tube._port)
        self._shared: Final = self._port.shared
        self.name: Final = self._shared.name
        #: The prefix of all keys of the tube.
        self.key: Final = self._shared.key
        self.driver: Final = self._shared.driver
        #: True if tasks may become due.
        self.is_timed: Final = is_timed(self.driver)

    @property
    def options(self) -> Mapping[str, Any]:
        """The checked options of the tube, in microseconds."""
        return self._shared.options

    @property
    def session_token(self) -> str:
        """The name of the session in the tube; '' before it is open."""
        return self._port.session.token if self._port.session else ""

    def call(self, script: str, *args: Word) -> Reply:
        """Call a function that uses no session and is safe to repeat."""
        return self._port.run(self._port.run_plain_script(script, *args))

    def call_in_session(self, script: str, *args: Word) -> Reply:
        """Call a function that uses the session of the connection."""
        return self._port.run(self._port.run_script(script, args))

    def run_commands(self, *commands: bytes) -> list[Reply]:
        """Return the replies to read-only commands, see `pack`, all run at one moment. Raises `TubeNotFound`."""
        return self._port.run(self._port.run_commands(*commands))

    def put_words(self, options: Options) -> tuple[Word, ...]:
        """Encode checked options of a put: the words before the data in the arguments of a put function."""
        new = task_codec.write(self.driver, self.options, options)
        words = (new.flags, new.due, new.pri, new.lane, new.header)
        return (*words, *key_words(options)) if "key" in options else words

    def lane_full(self, reply: ErrorReply) -> TubeFull:
        """Return the error for a put into a full lane."""
        return self._port.lane_full(reply)

    def leave_out(self, error: Unreadable) -> None:
        """Log unreadable data of the tube that is left out."""
        self._port.connection.store.invalid_names.leave_out(f"tube {self.name!r}", {error.facts["what"]: error})


def join_session(queue: HasConnection[AnyConnection], uuid: str) -> None:
    """Let a queue that has no open tube use the session `uuid`."""
    cast("RedisConnection", queue._connection).session.use(uuid)
