"""Asserts about tubes, and runs of workers. The message of a failed assert lists the tasks of the tube."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tubes.errors import CodecError, InvalidOption

if TYPE_CHECKING:
    from tubes.sync import Task, Tube
    from tubes.testing.clock import ManualClock
    from tubes.worker import Summary, Worker

_STATES: Final = ("ready", "taken", "delayed", "buried", "done", "total")
#: Attributes of a task that an assert may compare, in addition to its data.
_ATTRIBUTES: Final = frozenset(
    {"utube", "pri", "key", "attempts", "max_attempts", "reason", "ttl", "ttr", "due", "expires", "created", "context"}
)
#: The maximum number of tasks that a failed assert lists.
_MAX_LISTED: Final = 20
#: How often `run_until_empty` runs a worker without an ack or a burial. While ready tasks cannot be taken it advances
#: the clock by a second, and after a hundred runs by a minute.
_MAX_RUNS: Final = 1000
# The default for arguments that match anything.
_ANY: Final = object()


def assert_put(tube: Tube, data: object = _ANY, *, state: str | None = None, **facts: object) -> Task:
    """Assert that the tube has a task with this data, state and attributes. Returns the first one.

    `data`: compared by ==, so `unittest.mock.ANY` works; by default any data matches.
    `state`: ready, taken, delayed or buried. `facts`: attributes of a `Task`, such as `utube`, `pri`, `key`, `reason`.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.put({"to": "ann"}, key="ann")
    ...     assert_put(tube, {"to": "ann"}, key="ann").id
    ...     assert_put(tube, {"to": "bob"})
    Traceback (most recent call last):
    AssertionError: no task of tube 'mail' has data={'to': 'bob'}; there is:
      0 ready {'to': 'ann'} key='ann'
    """
    __tracebackhide__ = True
    if unknown := facts.keys() - _ATTRIBUTES:
        raise InvalidOption(option="facts", value=min(unknown), rule=f"must be one of {', '.join(sorted(_ATTRIBUTES))}")
    if state is not None and state not in _STATES[:4]:
        raise InvalidOption(option="state", value=state, rule="must be ready, taken, delayed or buried")
    tasks: list[Task] = [*tube.select()]
    for task in tasks:
        if (
            (data is _ANY or _data(task) == data)
            and (state is None or task.state == state)
            and all(getattr(task, name) == value for name, value in facts.items())
        ):
            return task
    wanted = [f"data={data!r}"] if data is not _ANY else []
    wanted += [f"{name}={value!r}" for name, value in facts.items()]
    words = f" has {', '.join(wanted)}" if wanted else " is there"
    raise AssertionError(f"no {state or ''} task of tube {tube.name!r}{words}; {_list(tasks)}".replace("no  ", "no "))


def assert_empty(tube: Tube) -> None:
    """Assert that the tube has no task in any state.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     assert_empty(queue.create_tube("mail"))
    """
    __tracebackhide__ = True
    tasks = [*tube.select()]
    if tasks:
        raise AssertionError(f"tube {tube.name!r} is not empty; {_list(tasks)}")


def assert_counts(tube: Tube, **counts: int) -> None:
    """Assert the number of tasks that are `ready`, `taken`, `delayed`, `buried` or `done`, or their `total`.

    Counts that are not passed are not checked.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.put_many(["to ann", "to bob"])
    ...     assert_counts(tube, ready=2, buried=0)
    """
    __tracebackhide__ = True
    if unknown := counts.keys() - set(_STATES):
        raise InvalidOption(option="counts", value=min(unknown), rule=f"must be one of {', '.join(_STATES)}")
    found = tube.statistics().tasks
    wrong = {name: count for name, count in counts.items() if found[name] != count}
    if wrong:
        expected = ", ".join(f"{count} {name}" for name, count in wrong.items())
        actual = ", ".join(f"{found[name]} {name}" for name in wrong)
        raise AssertionError(f"tube {tube.name!r} should have {expected}, and has {actual}; {_list([*tube.select()])}")


def assert_buried(tube: Tube, data: object = _ANY, *, reason: object = _ANY) -> Task:
    """Assert that the tube has a buried task with this data and this reason. Returns it.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.put("to ann").bury("no such address")
    ...     assert_buried(tube, reason="no such address").data
    'to ann'
    """
    __tracebackhide__ = True
    facts = {} if reason is _ANY else {"reason": reason}
    return assert_put(tube, data, state="buried", **facts)


def run_until_empty(worker: Worker, tube: Tube, clock: ManualClock) -> Summary:
    """Run a worker until the tube has no ready or delayed task, and advance the clock to each delayed one.

    `clock`: the clock of the worker's queue. Returns the sum of the summaries. Buried tasks stay. Call it outside of an
    event loop. Raises `AssertionError` after a thousand runs in which no task was acked or buried: the tube is paused,
    or its tasks fail and have no `max_attempts`, or no handler has their function.

    >>> import tubes
    >>> from tubes.worker import Worker
    >>> clock = tubes.testing.ManualClock()
    >>> with tubes.connect(clock=clock) as queue:
    ...     worker, mail = Worker(queue), queue.create_tube("mail", max_attempts=3, backoff=[60, 600])
    ...     worker.on(mail, lambda task: 1 / 0) and None
    ...     _ = mail.put("to ann")
    ...     summary = run_until_empty(worker, mail, clock)
    >>> summary.released, summary.buried, clock.now()
    (2, 1, 660.0)
    """
    __tracebackhide__ = True
    total, runs = worker.run(burst=True), 0
    while True:
        tasks = tube.statistics().tasks
        if not tasks["ready"] and not tasks["delayed"]:
            return total
        if runs == _MAX_RUNS:
            raise AssertionError(f"the worker cannot finish the tasks of tube {tube.name!r}; {_list([*tube.select()])}")
        due = None if tasks["ready"] else min((task.due for task in tube.select("delayed") if task.due), default=None)
        clock.advance((1 if runs < 100 else 60) if due is None else max(due - clock.now(), 0))
        summary = worker.run(burst=True)
        for name, count in vars(summary).items():
            setattr(total, name, max(total.exit_code, count) if name == "exit_code" else getattr(total, name) + count)
        runs = 0 if summary.acked or summary.buried else runs + 1


def _data(task: Task) -> object:
    try:
        return task.data
    except CodecError as error:
        return error


def _list(tasks: list[Task]) -> str:
    """List the tasks of a tube for an error message."""
    if not tasks:
        return "it is empty"
    lines = [
        " ".join(
            [
                f"\n  {task.id} {task.state} {_data(task)!r}",
                *(f"{name}={value!r}" for name in ("utube", "pri", "key", "reason") if (value := getattr(task, name))),
            ]
        )
        for task in tasks[:_MAX_LISTED]
    ]
    more = f"\n  … and {len(tasks) - _MAX_LISTED} more" if len(tasks) > _MAX_LISTED else ""
    return f"there is:{''.join(lines)}{more}"
