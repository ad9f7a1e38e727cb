"""Batches: many tasks in one call."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from typing_extensions import TypeVar, Unpack

from tubes.drivers.options import MAX_WAITING, NO_LANE, integer
from tubes.errors import InvalidOption, TubesError
from tubes.values.codecs import encode
from tubes.values.lease import Lease
from tubes.values.options import PutOptions
from tubes.values.task import FINISHED, TaskView

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.drivers.driver import Driver
    from tubes.values.codecs import Codec

T_co = TypeVar("T_co", default=Any, covariant=True)
#: The largest `limit` of a `take_many`.
MAX_TAKE_LIMIT: Final = 100_000
#: Options by name: as the user gave them, or checked and in microseconds.
Options: TypeAlias = Mapping[str, object]
_IN_ITERABLE: Final = ", in a list or another iterable"


class Item(Generic[T_co]):
    """Data for `Tube.put_many` with its own options. `options`: all options of `Tube.put` except `timeout`.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail", "fifottl")
    ...     tasks = tube.put_many(["to ann", tubes.Item("to bob", pri=0)], pri=5)
    ...     [task.pri for task in tasks]
    [5, 0]
    """

    __slots__ = ("data", "options")

    def __init__(self, data: T_co, **options: Unpack[PutOptions]) -> None:
        self.data = data
        self.options = options

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Item({self.data!r}{arguments})"


#: Consecutive tasks with equal options: the checked options, and the encoded data of each task.
Run: TypeAlias = tuple[Options, list[Any]]


NO_ERRORS: Final[Mapping[int, TubesError]] = MappingProxyType({})


class Batch:
    """Tasks to put, all or none."""

    __slots__ = ("errors", "has_keys", "max_waiting", "runs", "size", "upload_key", "upload_options")

    def __init__(self, runs: list[Run], errors: Mapping[int, TubesError] = NO_ERRORS) -> None:
        self.runs: Final = runs
        #: The number of tasks.
        self.size: Final = sum(len(many) for _, many in runs)
        #: The errors of invalid items, which are not put, by their positions.
        self.errors: Final = errors
        #: True if a task has a key.
        self.has_keys: Final = any("key" in options for options, _ in runs)
        #: The value of the option `MAX_WAITING`, which applies to the whole batch.
        self.max_waiting: Final[Any] = runs[0][0].get(MAX_WAITING) if runs else None
        #: The list on the server with its tasks, if they were uploaded before the put.
        self.upload_key = ""
        #: The options of the tube with which they were uploaded.
        self.upload_options: object = None

    def insert_errors(self, tasks: list[Any]) -> list[Any]:
        """Insert the errors of invalid items at their positions in the list of new tasks."""
        for number, error in sorted(self.errors.items()):
            tasks.insert(number, error)
        return tasks

    def is_too_large(self, capacity: int) -> bool:
        """True if not even an empty tube of this capacity has room for it; 0: the capacity is unlimited.

        A batch with keys may always fit, because the tube may already have some of its tasks.
        """
        return 0 < capacity < self.size and not self.has_keys

    def check_size(self, capacity: int) -> None:
        """Raise `InvalidOption` if the batch is too large for this capacity."""
        if self.is_too_large(capacity):
            rule = f"must be at most {capacity}, the tube's capacity"
            raise InvalidOption(option="items", value=self.size, rule=rule)

    def __iter__(self) -> Iterator[tuple[Any, Options]]:
        for options, many in self.runs:
            for data in many:
                yield data, options


def lanes_of(driver: Driver, request: Batch | tuple[object, Options]) -> set[object]:
    """The names of the lanes of a put, or of all puts of a batch."""
    runs: Iterable[Options] = (options for options, _ in request.runs) if isinstance(request, Batch) else (request[1],)
    lane: Any = driver.lane
    return {NO_LANE if options.get(lane) is None else options[lane] for options in runs}


def gather(driver: Driver, codec: Codec | None, items: object, options: Options, errors: object = "raise") -> Batch:
    """Check and encode the arguments of `put_many`. An error has the position of its item."""
    if errors not in ("raise", "return"):
        raise InvalidOption(option="errors", value=errors, rule='must be "raise" or "return"')
    if isinstance(items, (str, bytes, bytearray)):
        rule = "must be an iterable of items: put a single one in a list"
        raise InvalidOption(option="items", value=items, rule=rule)
    if isinstance(items, AsyncIterable):
        rule = "must be collected first: put_many([item async for item in items])"
        raise InvalidOption(option="items", value=items, rule=rule)
    if not isinstance(items, Iterable):
        raise InvalidOption(option="items", value=items, rule=f"must be data or Items{_IN_ITERABLE}")
    base = driver.check_put(options, alone=False)
    item_list: list[object] = [*items]
    found: dict[int, TubesError] | None = {} if errors == "return" else None
    runs = _gather_plain(codec, item_list, base) or _gather_runs(driver, codec, item_list, base, found)
    batch = Batch([run for run in runs if run[1]], found or NO_ERRORS)
    if batch.size and not batch.has_keys:
        driver.check_keyless(options)
    return batch


def _gather_plain(codec: Codec | None, items: list[object], base: Options) -> list[Run] | None:
    """Return the tasks as one run; None if an item has its own options, or the codec refuses one."""
    if Item in set(map(type, items)):
        return None
    try:
        return [(base, items if codec is None else list(map(codec.encode, items)))]
    except Exception:  # `_gather_runs` finds the item and its error.
        return None


def _gather_runs(
    driver: Driver, codec: Codec | None, items: list[object], base: Options, errors: dict[int, TubesError] | None
) -> list[Run]:
    """Check and encode the items one by one. Add the errors of items to `errors`; None: raise the first error."""
    last = base
    group: list[object] = []
    runs = [(last, group)]
    for number, item in enumerate(items):
        try:
            options, data = (_options_of(driver, base, item), item.data) if type(item) is Item else (base, item)
            stored = data if codec is None else encode(codec, data)
        except TubesError as error:
            item_error = type(error)(**error.facts, item=number)
            if errors is None:
                raise item_error from error.__cause__
            item_error.__cause__ = error.__cause__
            errors[number] = item_error
            continue
        if options is not last and options != last:
            last, group = options, []
            runs.append((last, group))
        group.append(stored)
    return runs


def _options_of(driver: Driver, base: Options, item: Item) -> Options:
    if not item.options:
        return base
    item_options: Options = item.options
    if "timeout" in item_options:
        rule = "is an option of the batch, not of an Item"
        raise InvalidOption(option="timeout", value=item_options["timeout"], rule=rule)
    own = driver.check_put(item_options, alone=False)
    options = {**base, **own} if base else own
    if "at" in options and "delay" in options:  # The item's option overrides the batch's.
        del options["delay" if "at" in own else "at"]
    if "key" not in options and ("on_duplicate" in item_options or "key_ttl" in item_options):
        driver.check_keyless(item_options)
    return options


def check_limit(value: object) -> int:
    return integer("limit", value, MAX_TAKE_LIMIT, least=1)


#: A resolved task, lease or id of a caller: the id (-1: no such task), the take number of the task or lease (0: any
#: take), and the task or lease itself, or None for an id.
Reference: TypeAlias = tuple[int, int, TaskView | Lease | None]
TasksById: TypeAlias = dict[int, Reference]


def tasks_by_id(tasks: object, refer: Callable[[object], Reference]) -> TasksById:
    """Resolve tasks, leases or ids that a caller passed, without duplicates."""
    if isinstance(tasks, (str, bytes, bytearray, TaskView)) or not isinstance(tasks, Iterable):
        raise InvalidOption(option="tasks", value=tasks, rule=f"must be tasks, leases or ids{_IN_ITERABLE}")
    found: TasksById = {}
    references: Iterable[Any] = tasks  # pyright: ignore[reportUnknownVariableType]
    for number, task in enumerate(references):
        try:
            reference = refer(task)
        except TubesError as error:
            raise type(error)(**error.facts, item=number) from error.__cause__
        id = reference[0] if reference[0] >= 0 else task.id
        if id not in found:
            found[id] = reference
    return found


def mark_all_finished(references: TasksById, done: dict[int, bool]) -> dict[int, bool]:
    """Mark the tasks for which the call succeeded as finished by the caller."""
    finished = references.values() if False not in done.values() else [references[id] for id in references if done[id]]
    for _, _, task in finished:
        if task is not None and task.__class__ is not Lease:
            task._take = FINISHED  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    return done
