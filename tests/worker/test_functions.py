"""Task functions, enqueued by both APIs, in memory and on a server."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, assert_type

import pytest

import tubes
from tests.contract.bench import eventually
from tests.worker.test_worker_running import running
from tubes import InvalidOption, TubeNotFound, task_data
from tubes.testing import ManualClock
from tubes.values.task_data import TASKS
from tubes.worker import Retry, Summary, Worker, current_task


@pytest.fixture(params=["sync", "aio"])
def enqueue(request: pytest.FixtureRequest, queue: tubes.Queue) -> Callable[..., tubes.Task]:
    """A function that enqueues a task by either API and returns it as a synchronous `Task`."""

    def put(*args: Any, **kwargs: Any) -> tubes.Task:
        async def main() -> tuple[str, int]:
            async with tubes.aio.connect(queue) as aio_queue:
                task = await aio_queue.enqueue(*args, **kwargs)
                return task.tube, task.id

        if request.param == "sync":
            return queue.enqueue(*args, **kwargs)
        tube, id = asyncio.run(main())
        return queue.tube(tube).peek(id)

    return put


def send_email(to: str, subject: str = "hello", *, copy: bool = False) -> str:
    return f"{subject} to {to}{' and a copy' * copy}"


async def send_slowly(to: str) -> str:
    await asyncio.sleep(0)
    return f"slowly to {to}"


# -- putting -----------------------------------------------------------------------------------------------------------


def test_a_function_or_its_name_is_put_with_its_arguments(enqueue: Callable[..., tubes.Task]) -> None:
    task = enqueue(send_email, "ann", copy=True)
    assert (task.tube, task.data) == (TASKS, {"task": "send_email", "args": ["ann"], "kwargs": {"copy": True}})
    assert (task.ttr, task.max_attempts) == (60, 3)
    task = enqueue("send_email", "ann", to="twice")
    assert task.data == {"task": "send_email", "args": ["ann"], "kwargs": {"to": "twice"}}


def test_keywords_may_have_any_name(enqueue: Callable[..., tubes.Task]) -> None:
    def configure(self: int, function: int, delay: int, key: int, tube: int, name: int, args: int) -> None: ...

    names = dict.fromkeys(("self", "function", "delay", "key", "tube", "name", "args"), 1)
    assert enqueue(configure, **names).data["kwargs"] == names
    assert enqueue("configure", **names).data["kwargs"] == names


def test_task_data_can_be_put_with_any_put_options(queue: tubes.Queue) -> None:
    tube = queue.create_tube("mail", "fifottl")
    tasks = tube.put_many([task_data(send_email, name) for name in ("ann", "bob")], delay=60)
    assert [task.state for task in tasks] == ["~", "~"]
    assert tube.put(task_data("send_email", "cid"), key="cid").key == "cid"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((), {"subject": "x"}),
        ((), {"to": "ann", "copyy": True}),
        (("ann", "x", True), {}),
        (("ann",), {"to": "bob"}),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_put(
    queue: tubes.Queue, enqueue: Callable[..., tubes.Task], args: Any, kwargs: Any
) -> None:
    tube = queue.create_tube(TASKS)
    with pytest.raises(InvalidOption, match=r"send_email\(to, subject='hello', \*,"):
        enqueue(send_email, *args, **kwargs)
    with pytest.raises(InvalidOption):
        task_data(send_email, *args, **kwargs)
    assert tube.statistics().tasks["total"] == 0


def test_every_call_that_python_allows_is_accepted() -> None:
    def plain(a: int, b: int = 2) -> None: ...
    def keywords(a: int, *, b: int, c: int = 3) -> None: ...
    def any_number(a: int, *args: int, **kwargs: int) -> None: ...
    def positional(a: int, b: int = 2, /, c: int = 3) -> None: ...

    calls: list[tuple[tuple[int, ...], dict[str, int]]] = [
        (tuple(range(count)), dict.fromkeys(names, 0))
        for count in range(4)
        for names in ((), ("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("d",))
    ]
    allowed = 0
    for function in (plain, keywords, any_number, positional):
        for args, kwargs in calls:
            try:
                function(*args, **kwargs)
            except TypeError:
                with pytest.raises(InvalidOption):
                    task_data(function, *args, **kwargs)
            else:
                allowed += 1
                task_data(function, *args, **kwargs)
    assert allowed > 20


def send_with(function: Callable[..., str]) -> Callable[..., str]:
    """A decorator that passes one more argument, and drops `dry`."""

    @functools.wraps(function)
    def wrapped(to: str, dry: bool = False) -> str:
        return function(wrapped, to)

    return wrapped


@send_with
def send_through(connection: object, to: str) -> str:
    return f"to {to}"


def test_decorator_decides_about_the_arguments(queue: tubes.Queue, enqueue: Callable[..., tubes.Task]) -> None:
    worker = Worker(queue)
    worker.task(send_through)
    enqueue(send_through, "ann")
    enqueue(send_through, "bob", dry=True)
    queue.enqueue("send_through", "cid")
    with pytest.raises(InvalidOption, match=r"send_through\(to, dry=False\): too many"):
        enqueue(send_through, None, "ann", 1)
    assert worker.run(burst=True) == Summary(acked=3)


def test_error_for_a_function_without_name_says_how_to_give_one(
    queue: tubes.Queue, enqueue: Callable[..., tubes.Task]
) -> None:
    worker, half = Worker(queue), functools.partial(send_through, dry=True)
    with pytest.raises(InvalidOption, match=r'worker\.task\("name"\)\(function\) gives a function a name'):
        worker.task(half)
    worker.task("half")(half)
    enqueue(half, "ann")
    assert worker.run(burst=True) == Summary(acked=1)


@pytest.mark.parametrize("bad", ["", None, 7, lambda: None, object()])
def test_enqueue_refuses_values_that_are_neither_function_nor_name(
    enqueue: Callable[..., tubes.Task], bad: Any
) -> None:
    with pytest.raises(InvalidOption):
        enqueue(bad)


def test_type_checkers_know_the_arguments(queue: tubes.Queue) -> None:
    queue.create_tube(TASKS)
    with pytest.raises(InvalidOption):
        queue.enqueue(send_email, to="ann", copyy=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption):
        queue.enqueue(send_slowly)  # type: ignore[call-overload]
    queue.enqueue(send_email, 7)  # type: ignore[call-overload]
    task: tubes.Task = queue.enqueue(send_email, "ann", copy=True)
    assert task.id == 1
    with pytest.raises(InvalidOption):
        queue.enqueue_with(key="x")(send_email, to="ann", copyy=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption):
        queue.enqueue_with()(send_slowly)  # type: ignore[call-overload]
    with pytest.raises(tubes.OptionNotSupported):
        queue.enqueue_with(prio=3)(send_slowly, "ann")  # type: ignore[call-arg]
    assert_type(queue.enqueue_with(key="x")(send_email, "ann", copy=True), tubes.Task)

    async def enqueue_async(aio: tubes.AsyncQueue) -> None:
        await aio.enqueue_with(key="x")(send_email, 7)  # type: ignore[call-overload]
        assert_type(await aio.enqueue_with(key="x")("any", 1, more=2), tubes.AsyncTask)

    assert callable(enqueue_async)


def test_enqueue_with_puts_with_options_into_any_tube(queue: tubes.Queue) -> None:
    def configure(delay: int, key: int, tube: int) -> None: ...

    mails = queue.create_tube("mails", "fifottl")
    task = queue.enqueue_with(delay=60, key="k")(configure, delay=1, key=2, tube=3)
    assert (task.tube, task.state, task.key) == (TASKS, "delayed", "k")
    assert task.data["kwargs"] == {"delay": 1, "key": 2, "tube": 3}
    for tube in (mails, "mails"):
        assert queue.enqueue_with(tube=tube, ttr=5)("send_email", "ann").tube == "mails"
    with pytest.raises(TubeNotFound):
        queue.enqueue_with(tube="nosuch")("send_email")

    async def main() -> tuple[str, object]:
        async with tubes.aio.connect(queue) as aio_queue:
            delayed = await aio_queue.enqueue_with(delay=60, tube="mails")(send_email, "ann")
            own = await aio_queue.enqueue_with(tube=await aio_queue.tube("mails"))(send_slowly, "bob")
            return delayed.state, own.data

    assert asyncio.run(main()) == ("delayed", {"task": "send_slowly", "args": ["bob"], "kwargs": {}})


def test_enqueue_refuses_arguments_that_are_not_json(queue: tubes.Queue, enqueue: Callable[..., tubes.Task]) -> None:
    for bad in (Path("a"), {1}, [b"a"], math.nan, "\ud800", {"a": math.inf}):
        for args, kwargs in (((bad,), {}), ((), {"to": bad})):
            with pytest.raises(tubes.CodecError):
                enqueue(send_email, *args, **kwargs)
        with pytest.raises(tubes.CodecError):
            queue.enqueue_with(key="k")("send_email", bad)
    for name, number, names in (("any", 10**5000, {}), ("\udc80", 1, {}), ("any", 1, {"\udc80": 1})):
        with pytest.raises(tubes.CodecError):
            enqueue(name, number, **names)
    assert enqueue("any", 1, 2.5, "ä", None, True, [{"a": (1,)}], more=("b",)).state == "ready"
    assert queue.tube(TASKS).select().count() == 1


def test_enqueue_finds_or_recreates_a_dropped_tube(queue: tubes.Queue) -> None:
    queue.enqueue("first")
    queue.tube(TASKS).drop(force=True)
    assert queue.enqueue("second").data["task"] == "second"
    queue.tube(TASKS).drop(force=True)
    queue.create_tube(TASKS, "fifo")
    assert queue.enqueue("third").data["task"] == "third"
    assert queue.tube(TASKS).driver.name == "fifo"


def test_many_programs_may_begin_at_once(queue: tubes.Queue) -> None:
    together = threading.Barrier(4)

    def put() -> None:
        with queue.session() as mine:
            together.wait(20)
            mine.enqueue("one")

    with ThreadPoolExecutor(4) as threads:
        for end in [threads.submit(put) for _ in range(4)]:
            end.result()
    assert queue.tube(TASKS).statistics().tasks["total"] == 4


# -- options beside a function -----------------------------------------------------------------------------------------


def test_enqueue_uses_the_options_beside_the_function(queue: tubes.Queue, enqueue: Callable[..., tubes.Task]) -> None:
    worker = Worker(queue)

    @worker.task("mail.send", max_attempts=5, ttr=7, pri=3, keep_done=60, key=lambda to, **_: f"to {to}", key_ttl=9)
    def send(to: str, subject: str = "") -> None: ...

    task = enqueue(send, "ann", subject="news")
    assert (task.max_attempts, task.ttr, task.pri, task.keep_done, task.key) == (5, 7, 3, 60, "to ann")
    assert enqueue(send, "ann").id == task.id
    other = queue.enqueue_with(max_attempts=2, key="bob", pri=None)(send, "bob")
    assert (other.max_attempts, other.ttr, other.key, other.pri) == (2, 7, "bob", 0)
    assert (enqueue("mail.send", "cid").max_attempts, enqueue("mail.send", "cid").key) == (3, None)
    with pytest.raises(InvalidOption, match="missing a required argument"):
        queue.enqueue(send, subject="type checkers know the arguments")  # type: ignore[call-overload]


@pytest.mark.parametrize("option", ["timeout", "process", "backoff", "unique"])
def test_option_that_stands_beside_a_function_is_refused_for_a_single_task(queue: tubes.Queue, option: str) -> None:
    with pytest.raises(InvalidOption, match=rf"{option}=1: belongs beside the function, as in @worker.task\({option}="):
        queue.enqueue_with(**{option: 1})  # type: ignore[arg-type]


def test_key_of_a_single_task_replaces_the_one_beside_the_function(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    keyed = worker.task("keyed", key=lambda to: {}[to])(lambda to: None)
    assert queue.enqueue_with(key="mine")(keyed, "ann").key == "mine"
    assert queue.enqueue_with(key=None)(keyed, "ann").key is None
    with pytest.raises(KeyError):
        queue.enqueue(keyed, "ann")


def test_unique_call_does_not_depend_on_the_order_of_members(queue: tubes.Queue) -> None:
    unique = Worker(queue).task("f", unique=True)(lambda options: None)
    assert queue.enqueue(unique, {"a": [{"b": 1, "c": 2}]}).id == queue.enqueue(unique, {"a": [{"c": 2, "b": 1}]}).id
    with pytest.raises(tubes.CodecError):
        queue.enqueue(unique, {1, 2})


def test_unique_call_may_have_a_default_that_is_not_json(queue: tubes.Queue) -> None:
    missing = object()
    unique = Worker(queue).task("f", unique=True)(lambda a, b=missing: None)
    assert queue.enqueue(unique, 1).id == queue.enqueue(unique, 1).id != queue.enqueue(unique, 1, 2).id


def test_options_beside_a_function_are_copied(queue: tubes.Queue) -> None:
    context = {"a": "1"}
    function = Worker(queue).task("f", context=context)(lambda: None)
    context["a"] = "2"
    assert queue.enqueue(function).context == {"a": "1"}


def test_options_beside_a_method_are_refused(queue: tubes.Queue) -> None:
    class Sender:
        def send(self) -> None: ...

    worker = Worker(queue)
    worker.task(Sender().send)
    with pytest.raises(InvalidOption, match="cannot carry options beside it: wrap it in a function"):
        worker.task("other", max_attempts=5)(Sender().send)


def test_schedule_of_another_worker_keeps_the_options_of_a_function(queue: tubes.Queue) -> None:
    def sweep() -> None: ...

    Worker(queue).task(max_attempts=6, unique=True)(sweep)
    Worker(queue).every(60)(sweep)
    task = queue.enqueue(sweep)
    assert (task.tube, task.max_attempts, task.key) == (TASKS, 6, "sweep[[],{}]")


def test_unique_call_is_put_once(queue: tubes.Queue, enqueue: Callable[..., tubes.Task]) -> None:
    worker = Worker(queue)
    unique = worker.task(unique=True)(send_email)
    long = "x" * 1000
    first = [enqueue(unique, to) for to in ("ann", "bob", long)]
    for again in (
        [enqueue(unique, to=to) for to in ("ann", "bob", long)],
        [enqueue(unique, to, "hello", copy=False) for to in ("ann", "bob", long)],
    ):
        assert [task.id for task in first] == [task.id for task in again]
    assert enqueue(unique, "ann", "other").id != first[0].id
    assert worker.run(burst=True).acked == 4
    assert enqueue(unique, "ann").id not in {task.id for task in first}


def test_backoff_beside_the_function_replaces_that_of_the_tube(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)

    @worker.task(max_attempts=4, backoff=[2, 30])
    def fail() -> None:
        raise ValueError("no")

    @worker.task(max_attempts=2)
    def fail_as_the_tube() -> None:
        raise ValueError("no")

    @worker.task(max_attempts=2, backoff=[2])
    def choose() -> None:
        raise Retry(delay=50)

    tasks = [queue.enqueue(function) for function in (fail, fail_as_the_tube, choose)]
    tube, begin = queue.tube(TASKS), clock.now()
    worker.run(burst=True)
    assert [round((tube.peek(task.id).due or 0) - begin, 3) for task in tasks] == [2, 1, 50]
    clock.advance(2)
    worker.run(burst=True)
    assert round((tube.peek(tasks[0].id).due or 0) - clock.now(), 3) == 30


def test_attempt_that_exceeds_its_timeout_waits_for_the_backoff_of_its_function(queue: tubes.Queue) -> None:
    worker, release = Worker(queue), threading.Event()

    @worker.task(timeout=0.01, backoff=[5000])
    def wait() -> None:
        release.wait(10)

    task = queue.enqueue(wait)
    worker.run(burst=True)
    release.set()
    assert queue.tube(TASKS).peek(task.id).due == pytest.approx(task.created + 5000)


def test_calls_of_a_schedule_have_the_options_of_their_function(queue: tubes.Queue, clock: ManualClock) -> None:
    worker = Worker(queue)

    @worker.every(60)
    @worker.task(tube="schedules", max_attempts=7, pri=4, key="fixed", delay=5)
    def sweep() -> None: ...

    worker.run(burst=True)
    (task,) = queue.tube("schedules").select()
    assert (task.max_attempts, task.pri) == (7, 4)
    assert task.key != "fixed"
    assert task.due is not None
    assert task.due % 60 == 0


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"ttl": -1}, "ttl"),
        ({"backoff": []}, "backoff"),
        ({"key": 5}, "key"),
        ({"key": "a", "unique": True}, "cannot be given beside unique"),
        ({"unique": 1}, "unique"),
        ({"retries": 3}, "is not an option of Tube.put"),
        ({"key_ttl": 3}, "is only for tasks with a key"),
    ],
)
def test_wrong_option_beside_a_function_is_refused(queue: tubes.Queue, options: Any, rule: str) -> None:
    worker = Worker(queue)
    with pytest.raises(InvalidOption, match=rule):
        worker.task(**options)(send_email)


# -- working -----------------------------------------------------------------------------------------------------------


def test_functions_are_called_with_their_arguments(queue: tubes.Queue, enqueue: Callable[..., tubes.Task]) -> None:
    seen: list[Any] = []
    worker = Worker(queue)

    @worker.task
    def plain(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs, threading.current_thread() is threading.main_thread()))

    @worker.task("other name")
    async def run_async(*args: Any) -> None:
        await asyncio.sleep(0)
        seen.append((args, threading.current_thread() is threading.main_thread()))

    enqueue(plain, 1, [2], three={"four": None})
    enqueue(run_async, 5)
    enqueue("other name", 6)
    queue.tube(TASKS).put({"task": "plain"})
    assert worker.run(burst=True) == Summary(acked=4)
    assert seen == [((1, [2]), {"three": {"four": None}}, False), ((5,), True), ((6,), True), ((), {}, False)]


def test_decorated_function_can_still_be_called(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    assert worker.task(send_email) is send_email
    assert worker.task("twice")(send_slowly) is send_slowly
    assert send_email("ann") == "hello to ann"


def test_function_is_enqueued_in_its_own_tube(queue: tubes.Queue, enqueue: Callable[..., tubes.Task]) -> None:
    def work() -> None: ...

    worker = Worker(queue)
    with pytest.raises(TubeNotFound):
        worker.task("work", tube="mail")(work)
    mail = queue.create_tube("mail")
    worker.task("work", tube="mail")(work)
    mail.drop()
    with pytest.raises(TubeNotFound):
        enqueue(work)
    queue.create_tube("mail")
    assert enqueue(work).tube == "mail"
    assert worker.run(burst=True) == Summary(acked=1)


def test_worker_creates_the_default_tube(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    worker.task(send_email)
    assert worker.run(burst=True) == Summary()
    assert queue.tubes() == [TASKS]
    assert queue.tube(TASKS).put("x").max_attempts == 3


def test_return_value_of_a_function_reaches_the_caller(queue: tubes.Queue) -> None:
    worker = Worker(queue, concurrency=2)
    worker.task(send_email)
    worker.task(send_slowly)
    tube = queue.create_tube(TASKS)
    with running(worker):
        assert tube.call(task_data(send_email, "ann", copy=True), timeout=20) == "hello to ann and a copy"
        assert tube.call(task_data("send_slowly", "bob"), timeout=20) == "slowly to bob"


@pytest.mark.parametrize("driver", ["fifottl", "fifo"])
def test_unknown_function_is_left_to_other_workers(
    queue: tubes.Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture, driver: str
) -> None:
    tube = queue.create_tube(TASKS, driver, max_attempts=1)
    tube.put_many([task_data("new", "secret"), task_data("new", "too")])
    old, new = Worker(queue), Worker(queue)
    old.task(send_email)
    seen: list[tuple[str, int]] = []
    new.task("new")(lambda to: seen.append((to, current_task().attempts)))
    for _ in range(5):
        assert old.run(burst=True) == Summary()
        clock.advance(30)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "task 0 of tube 'tasks' (new) is left to other workers: this worker does not have the function 'new'. "
        "If another application uses this tube, give each a namespace, as in redis://localhost?namespace=shop"
    ] * 5  # One warning in each run.
    assert tube.statistics().calls["release"] == 0
    assert new.run(burst=True) == Summary(acked=2)
    assert seen == [("secret", 1), ("too", 1)]
    assert "secret" not in caplog.text


def test_old_workers_leave_a_new_function_to_a_new_worker(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube(TASKS, "fifottl", max_attempts=1)
    workers = [Worker(queue, concurrency=4) for _ in range(4)]
    seen: list[int] = []
    hooked: list[int] = []
    for worker in workers:
        worker.task(send_email)
        worker.around(lambda task: nullcontext(hooked.append(task.id)))  # type: ignore[func-returns-value]
    workers[0].task("new")(seen.append)
    with ExitStack() as stack:
        for worker in workers[1:]:
            stack.enter_context(running(worker))
        tube.put_many(task_data("new", number) for number in range(20))
        assert eventually(lambda: tube.statistics().tasks["delayed"] == 20)
        stack.enter_context(running(workers[0]))
        assert eventually(lambda: bool(clock.advance(30)) or len(seen) == 20)  # type: ignore[func-returns-value]
    assert sorted(seen) == list(range(20)) == sorted(hooked)  # The old workers did not call the hook.
    assert tube.statistics().tasks["buried"] == 0


def test_ttl_removes_calls_of_unknown_functions(queue: tubes.Queue, clock: ManualClock) -> None:
    tube = queue.create_tube(TASKS, "fifottl", ttl=60)
    queue.enqueue("gone")
    worker = Worker(queue)
    worker.task(send_email)
    for _ in range(7):
        worker.run(burst=True)
        clock.advance(15)
    assert tube.statistics().tasks["total"] == 0


def test_arguments_that_do_not_fit_bury_a_task_at_once(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    worker.task(send_email)
    queue.enqueue("send_email")
    queue.enqueue("send_email", "ann", too="much")
    assert worker.run(burst=True) == Summary(buried=2)
    reasons = [task.reason or "" for task in queue.tube(TASKS).select("buried")]
    assert reasons[0] == "TypeError: send_email(to, subject='hello', *, copy=False): missing a required argument: 'to'"
    assert reasons[1].endswith("got an unexpected keyword argument 'too'")


@pytest.mark.parametrize(
    "data", [None, "x", 7, {}, [], {"task": 7}, {"task": "f", "args": 7}, {"task": "send_email", "kwargs": ["to"]}]
)
def test_invalid_task_data_buries_the_task(queue: tubes.Queue, data: Any) -> None:
    worker = Worker(queue)
    worker.task(send_email)
    tube = queue.create_tube(TASKS)
    tube.put(data)
    assert worker.run(burst=True) == Summary(buried=1)
    assert (next(iter(tube.select("buried"))).reason or "").startswith(
        "ValueError: the data of a task function must be"
    )


def test_error_of_a_function_is_handled_like_any_handler_error(queue: tubes.Queue) -> None:
    worker = Worker(queue)

    @worker.task
    def fail(how: str) -> None:
        raise Retry(delay=9) if how == "later" else ValueError(how)

    for how in ("later", "bad"):
        queue.enqueue(fail, how)
    assert worker.run(burst=True) == Summary(released=2)
    assert [queue.tube(TASKS).peek(id).state for id in range(2)] == ["~", "~"]


def test_a_function_has_a_timeout_of_its_own(queue: tubes.Queue) -> None:
    worker = Worker(queue, concurrency=2)

    @worker.task(timeout=0.05)
    async def hang() -> None:
        await asyncio.sleep(3600)

    @worker.task
    def work() -> None:
        time.sleep(0.2)

    queue.enqueue(hang)
    queue.enqueue(work)
    assert worker.run(burst=True) == Summary(acked=1, released=1)


def test_current_task_returns_the_task_of_the_function(queue: tubes.Queue) -> None:
    worker = Worker(queue, concurrency=3)
    seen: list[Any] = []

    @worker.task
    def plain(number: int) -> None:
        seen.append((number, current_task().id, type(current_task())))

    @worker.task
    async def run_async(number: int) -> None:
        await asyncio.sleep(0.01)
        seen.append((number, current_task().id, type(current_task())))

    for number in range(6):
        queue.enqueue(run_async if number % 2 else plain, number)
    assert worker.run(burst=True).acked == 6
    assert sorted(seen, key=str) == [(n, n, tubes.AsyncTask if n % 2 else tubes.Task) for n in range(6)]
    with pytest.raises(LookupError):
        current_task()


def test_functions_may_be_added_while_a_worker_runs(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    seen: list[int] = []
    worker.task("one")(lambda: seen.append(1))
    with running(worker):
        queue.enqueue("one")
        assert eventually(lambda: seen == [1])
        worker.task("two")(lambda: seen.append(2))
        queue.enqueue("two")
        queue.enqueue("one")
        assert eventually(lambda: sorted(seen) == [1, 1, 2])
        assert eventually(lambda: queue.tube(TASKS).statistics().tasks["total"] == 0)


def test_hooks_also_wrap_task_functions(queue: tubes.Queue) -> None:
    worker = Worker(queue)
    seen: list[Any] = []

    @worker.around
    def log(task: tubes.Task) -> Iterator[None]:
        seen.append(task.data["task"])
        yield

    @worker.task
    def work() -> None:
        seen.append("works")

    queue.enqueue(work)
    worker.run(burst=True)
    assert seen == ["work", "works"]


def generator() -> Iterator[None]:
    yield


BAD: list[Callable[[Worker], Any]] = [
    lambda worker: worker.task("")(send_email),
    lambda worker: worker.task(7),  # type: ignore[call-overload]
    lambda worker: worker.task("other")(7),  # type: ignore[type-var]
    lambda worker: worker.task("other")(generator),
    lambda worker: worker.task(lambda: None),
    lambda worker: worker.task("send_email")(send_slowly),
    lambda worker: worker.task("other", timeout=0)(send_slowly),
    lambda worker: worker.task("other", timeout=-1)(send_slowly),
    lambda worker: worker.task("other", tube="")(send_slowly),
    lambda worker: worker.task("other", tube="mail")(send_slowly),
    lambda worker: worker.on(TASKS, send_slowly),
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_refused_and_changes_nothing(queue: tubes.Queue, bad: Any) -> None:
    worker = Worker(queue)
    worker.task(send_email)
    worker.on(queue.create_tube("mail"), lambda task: None)
    queue.enqueue(send_email, "ann")
    with pytest.raises(InvalidOption):
        bad(worker)
    queue.tube("mail").put("bob")
    assert worker.run(burst=True) == Summary(acked=2)


def test_task_data_quoted_in_logs_and_reasons_is_truncated(
    queue: tubes.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue)
    worker.task(send_email)
    tube = queue.create_tube(TASKS, "fifottl", max_attempts=1)
    tube.put({"task": "u" * 100_000})
    wrong = tube.put({"task": "send_email", "args": ["ann"], "kwargs": {"k" * 100_000: 1}})
    assert worker.run(burst=True) == Summary(buried=1)
    (dead,) = tube.select("buried")
    assert dead.id == wrong.id
    assert "got an unexpected keyword argument 'kkk" in (dead.reason or "")
    assert len(dead.reason or "") < 300
    assert "does not have the function 'uuu" in caplog.text
    assert len(caplog.text) < 3000
