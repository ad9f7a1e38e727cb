"""Problems that `check` finds in a tube, and their repairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: By kind: the description, the repair in the present tense, and in the past tense. `{}`: ids or names.
KINDS: Final[dict[str, tuple[str, str, str]]] = {
    "tube": (
        "the description of the tube cannot be read: {}",
        "does nothing: restore it by hand, or drop the tube",
        "did nothing: restore it by hand, or drop the tube",
    ),
    "type": ("keys of a wrong type: {}", "removes them", "removed them"),
    "field": (
        "fields of the meta hash that are missing or invalid: {}",
        "sets them again from the tasks",
        "set them again from the tasks",
    ),
    "next": (
        "ids that other tasks would get again: {}",
        "moves the next id past them",
        "moved the next id past them",
    ),
    "unreadable": (
        "tasks that cannot be read: {}",
        "moves them unchanged to the key :broken",
        "moved them unchanged to the key :broken",
    ),
    "stranded": (
        "tasks that are in no index and cannot be taken: {}",
        "adds them to their indexes",
        "added them to their indexes",
    ),
    "entry": ("index entries that match no task: {}", "removes them", "removed them"),
    "due": (
        "tasks whose time of the next change is wrong or missing: {}",
        "sets it; a task that has lost its delay is ready at once",
        "set it; a task that had lost its delay is ready now",
    ),
    "key": (
        "unique keys that do not refer to their tasks: {}",
        "corrects them; if two tasks have one key, one keeps it",
        "corrected them; if two tasks had one key, one keeps it",
    ),
    "lane": ("lanes whose state differs from that of their tasks: {}", "corrects them", "corrected them"),
    "session": (
        "sessions that are stored incompletely: {}",
        "ends them; after a minute, if a program may still use them",
        "ended them; sessions that a program may still use end in a minute",
    ),
    "orphan": ("tasks that are held by sessions that do not exist: {}", "releases them", "released them"),
    "answer": ("replies to sessions that do not exist: {}", "removes them", "removed them"),
    "waiting": ("invalid entries of waiting processes: {}", "removes them", "removed them"),
    "oldest": ("tasks below the lowest id that is searched: {}", "lowers that id", "lowered that id"),
    "counter": ("counters that are wrong: {}", "corrects them", "corrected them"),
    "file": (
        "the file of the store is damaged: {}",
        "saves all readable rows in a new file, and keeps the old one",
        "saved all readable rows in a new file, and kept the old one",
    ),
    "saved": ("tasks that can be read: {count}", "saves them", "saved them"),
    "lost": (
        "missing tasks: {count}",
        "cannot restore them: a backup may have them",
        "could not restore them: a backup may have them",
    ),
    "unreadable pages": ("unreadable pages of the file: {count}", "leaves them out", "left them out"),
    "unreadable rows": ("unreadable rows of the file: {count}", "leaves them out", "left them out"),
    "uncertain": (
        "tasks that may be damaged: {}",
        "buries them; leaves out tasks without data",
        "buried them; left out tasks without data",
    ),
    "facts": (
        "invalid rows of tubes, keys, lanes or done tasks: {}",
        "restores rows of tubes from their tasks; leaves out the others",
        "restored rows of tubes from their tasks; left out the others",
    ),
    "kept": ("the old files: {}", "keeps them", "kept them in the folder"),
    "reserve": ("a path in place of the reserve file: {}", "renames it", "renamed it"),
    "memory": ("indexes in memory that differ from the tasks: {}", "rebuilds them", "rebuilt them"),
}
#: Kinds of problems with which `repair` has lost data, or may have.
LOSSES: Final = frozenset({"lost", "uncertain", "unreadable pages", "unreadable rows"})
#: Kinds that `repair` cannot solve.
UNREPAIRABLE: Final = frozenset({"tube"})


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a tube, as `QueueAdmin.check` and `QueueAdmin.repair` return it.

    `kind`: a word for programs; `count`: how many tasks, keys or fields have it; `examples`: some ids or names.
    `what` describes it, and `remedy` describes its repair. `repaired`: True after its repair. `tube`: the name of the
    tube; "" for the file of a folder.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     _ = queue.create_tube("mail").put("to ann")
    ...     queue.admin.check("mail")
    []
    """

    kind: str
    count: int
    examples: tuple[str, ...]
    repaired: bool
    tube: str = ""

    @property
    def what(self) -> str:
        """The description of the problem."""
        more = f" and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return KINDS[self.kind][0].format(", ".join(self.examples) + more, count=self.count)

    @property
    def remedy(self) -> str:
        """The description of the repair: in the past tense after the repair."""
        return KINDS[self.kind][2 if self.repaired else 1]
