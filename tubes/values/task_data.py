"""The data of a task that calls a function: name and arguments. Programs in other languages can write it, too."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from math import isfinite
from types import NoneType
from typing import Any, Final, ParamSpec, cast, overload

from tubes.drivers.backoff import Backoff
from tubes.drivers.options import OF_TASKS, flag, text
from tubes.errors import CodecError, InvalidOption, cut
from tubes.values.codecs import Codec, JsonCodec, RawCodec, encode
from tubes.values.options import PutOptions, TubeOptions

P = ParamSpec("P")

#: The default tubes of task functions and of schedules, and the options with which a missing one is created.
TASKS: Final = "tasks"
SCHEDULES: Final = "schedules"
TASKS_OPTIONS: Final[TubeOptions] = {"ttr": 60, "max_attempts": 3, "backoff": Backoff(1, factor=5, cap=600)}

#: The maximal length of the reason in an error: the reason may quote long names of keyword arguments.
_MAX_REASON: Final = 150
_JSON: Final = JsonCodec()
#: Types whose values JSON can always encode.
_PLAIN: Final = frozenset({bool, NoneType})
#: Longer whole numbers may have more digits than Python converts.
_LONG: Final = 2**64
_MARK: Final = "__tubes_task__"
#: The maximal number of cached signatures of calls per function; with `**kwargs` their number is unlimited.
_MAX_CACHED: Final = 100
#: Longer arguments are in the key of a unique call as their hash.
_MAX_KEY: Final = 200
#: The size in bytes of the longest encoded data that a selection by function decodes.
MAX_DECODED: Final = 2**20
#: Options that stand only beside a function, since its worker uses them.
WORKER_OPTIONS: Final = frozenset({"timeout", "process", "backoff", "unique"})
_NO_OPTIONS: Final[PutOptions] = {}
#: The members of the data; `at`: the time of an occurrence of a schedule.
_MEMBERS: Final = frozenset({"task", "args", "kwargs", "at"})


@overload
def task_data(function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> dict[str, object]: ...
@overload
def task_data(function: str, /, *args: object, **kwargs: object) -> dict[str, object]: ...
def task_data(function: Callable[..., object] | str, /, *args: object, **kwargs: object) -> dict[str, object]:
    """Return the data of a task that calls a function, for `put`, `put_many` and `call` with their options.

    `function`: a function, whose signature the arguments must match, or a name.
    `args`, `kwargs`: its arguments. On a server the codec must be able to encode them: JSON by default.

    `Queue.enqueue` and `Queue.enqueue_with` are shorter for a single put, and add the options beside the function. The
    data is a mapping with `task`, the name, `args`, a list, and `kwargs`, a mapping; the last two may be missing.

    Raises `InvalidOption` if the arguments do not fit the function.

    >>> import tubes
    >>> def send_email(to: str, subject: str = "hello") -> None: ...
    >>> tubes.task_data(send_email, "ann", subject="news")
    {'task': 'send_email', 'args': ['ann'], 'kwargs': {'subject': 'news'}}
    >>> with tubes.connect() as queue:
    ...     emails = queue.create_tube("emails", "fifottl")
    ...     emails.put(tubes.task_data("send_email", "ann"), delay=3600).state.name
    'DELAYED'
    """
    return call_of(function, args, kwargs)[1]


def call_of(
    function: Callable[..., object] | str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    options: PutOptions = _NO_OPTIONS,
) -> tuple[str, dict[str, object], PutOptions]:
    """Return the tube, data and options of a task that calls a function.

    `function`: the function or its name. `options`: replace those beside the function.
    """
    task_function: TaskFunction | None = getattr(function, _MARK, None)
    if task_function is None:
        if isinstance(function, str):
            return TASKS, {"task": text("function", function), "args": [*args], "kwargs": kwargs}, options
        task_function = mark(function, None, TASKS)
    if (len(args), *kwargs) not in task_function.valid_calls:
        task_function.check(args, kwargs)
    data: dict[str, object] = {"task": task_function.name, "args": [*args], "kwargs": kwargs}
    return task_function.tube, data, task_function.options_of(args, kwargs, options)


def check_call(data: dict[str, object], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Raise `CodecError` if the data of a call, with these arguments, cannot be encoded as JSON."""
    name = data["task"]
    values: tuple[Any, ...] = (name, *args, *kwargs, *kwargs.values()) if kwargs else (name, *args)
    for value in values:
        kind = value.__class__  # Most arguments are plain, which is faster to see than to encode.
        if kind is int:
            is_plain = -_LONG < value < _LONG
        else:
            is_plain = value.isascii() if kind is str else kind in _PLAIN or (kind is float and isfinite(value))
        if not is_plain:
            encode(_JSON, data)
            return


class TaskFunction:
    """A function that tasks call: its name, tube and signature, and the options of its tasks.

    `key`: a function of the arguments that returns the key of a task; None: the key is among the options. `unique`: the
    key consists of the name and the arguments.
    """

    __slots__ = ("_is_unique", "_key", "_signature", "name", "options", "tube", "valid_calls")

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        tube: str,
        options: PutOptions = _NO_OPTIONS,
        key: Callable[..., str | None] | None = None,
        *,
        unique: bool = False,
    ) -> None:
        self.name: Final = name
        self.tube: Final = tube
        self.options: Final = options
        self._key: Final = key
        self._is_unique: Final = unique
        self._signature: Final = _signature_of(function)
        #: Cache of valid calls: the number of positional arguments, and the keywords. A lookup is faster than `bind`.
        self.valid_calls: Final[set[tuple[object, ...]]] = set()

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise `InvalidOption` if the arguments do not match the signature."""
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            rule = f"{self.name}{self._signature}: {cut(str, str(error), _MAX_REASON)}"
            raise InvalidOption(option="arguments", value=(*args, kwargs) if kwargs else (*args,), rule=rule) from None
        if len(self.valid_calls) < _MAX_CACHED:
            self.valid_calls.add((len(args), *kwargs))

    def options_of(self, args: tuple[object, ...], kwargs: dict[str, object], options: PutOptions) -> PutOptions:
        """Return the options of a task with these arguments. `options`: replace those beside the function."""
        if "key" not in options and (self._key is not None or self._is_unique):
            key = self._unique_key(args, kwargs) if self._key is None else self._key(*args, **kwargs)
            return {**self.options, "key": key, **options}
        return {**self.options, **options} if self.options else options

    def _unique_key(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        """Return the key of a call. It is the same however an argument is given: by position, by name or by default."""
        encoded = encode(_JSON, [[*args], kwargs])
        if self._signature is not None:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            with suppress(CodecError):  # A default need not be possible in JSON.
                encoded = encode(_JSON, [[*bound.args], bound.kwargs])
        values = json.loads(encoded)  # To write the members of objects in order.
        call = json.dumps(values, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return f"{self.name}{call if len(call) <= _MAX_KEY else sha256(call.encode()).hexdigest()}"


def function_options(
    key: object, unique: object, options: Mapping[str, object]
) -> tuple[PutOptions, Callable[..., str | None] | None]:
    """Check the options beside a function; return those of its tasks, and the function that makes their keys."""
    checked = {name: value for name, value in options.items() if value is not None}
    if "key_ttl" in checked and key is None and not unique:
        raise InvalidOption(option="key_ttl", value=checked["key_ttl"], rule="is only for tasks with a key")
    if flag("unique", unique) and key is not None:
        raise InvalidOption(option="key", value=key, rule="cannot be given beside unique=True, which makes the key")
    maker = cast("Callable[..., str | None]", key) if callable(key) else None
    if key is not None and maker is None:
        checked["key"] = key
    for name, value in checked.items():
        if name not in OF_TASKS:
            raise InvalidOption(option=name, value=value, rule="is not an option of Tube.put")
        OF_TASKS[name](name, value)
    if "context" in checked:
        checked["context"] = dict(cast("Mapping[str, str]", checked["context"]))
    return cast("PutOptions", checked), maker


def _signature_of(function: Callable[..., object]) -> inspect.Signature | None:
    """Return the signature without annotations, which would make errors long; None: the function has none."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # A decorator may pass or drop arguments.
    except (TypeError, ValueError):
        return None
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def name_of(function: object, name: str | None = None) -> str:
    """Return `name`, or the function's own name if it is None."""
    if name is not None:
        return text("name", name)
    own = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(own, str) or not own.isidentifier():
        rule = 'must be a named function, or its name; worker.task("name")(function) gives a function a name'
        raise InvalidOption(option="function", value=function, rule=rule)
    return own


def mark(
    function: Callable[..., object],
    name: str | None,
    tube: str,
    options: PutOptions = _NO_OPTIONS,
    key: Callable[..., str | None] | None = None,
    *,
    unique: bool = False,
) -> TaskFunction:
    """Register the name, the tube and the options of the tasks that call a function.

    Raises `InvalidOption` if there are options and the function cannot carry them, as a method.
    """
    task_function = TaskFunction(function, name_of(function, name), tube, options, key, unique=unique)
    try:
        setattr(function, _MARK, task_function)
    except (AttributeError, TypeError):  # A method, for example, is inspected on each call instead.
        if options or key is not None or unique:
            rule = "cannot carry options beside it: wrap it in a function"
            raise InvalidOption(option="function", value=function, rule=rule) from None
    return task_function


def is_marked(function: object) -> bool:
    """Return True if `enqueue` knows the name, the tube and the options of the function."""
    return hasattr(function, _MARK)


def function_of(data: object) -> str | None:
    """Return the name of the function that this data of a task calls; None for other data."""
    if isinstance(data, Mapping):
        fields = cast("Mapping[object, object]", data)
        name = fields.get("task")
        if isinstance(name, str) and fields.keys() <= _MEMBERS:
            return name
    return None


def calls_function(data: Any, name: str, codec: Codec | None) -> bool:
    """Return True if data, encoded by `codec` if there is one, call the function. Raw data may be JSON."""
    if codec is not None and len(data) > MAX_DECODED:
        return False
    if type(codec) in (JsonCodec, RawCodec):
        codec = _JSON
    # JSON without backslashes contains its strings as they are.
    if codec is _JSON and name.encode("utf-8", "surrogatepass") not in data and b"\\" not in data:
        return False
    try:
        found = data if codec is None else codec.decode(data)
        return isinstance(found, Mapping) and bool(cast("Mapping[object, object]", found).get("task") == name)
    except Exception:  # Codecs and mappings of the program may raise anything.
        return False


def read(data: object) -> tuple[str, list[object], dict[str, object]]:
    """Return the function's name and arguments in a task's data. Raises `ValueError` for other data."""
    if isinstance(data, Mapping):
        fields = cast("Mapping[object, object]", data)
        name, args, kwargs = fields.get("task"), fields.get("args", []), fields.get("kwargs", {})
        if isinstance(name, str) and isinstance(args, (list, tuple)) and isinstance(kwargs, Mapping):
            keywords = cast("Mapping[object, object]", kwargs)
            named = {key: value for key, value in keywords.items() if isinstance(key, str)}
            if len(named) == len(keywords):
                return name, [*args], named
    raise ValueError('the data of a task function must be {"task": name, "args": [...], "kwargs": {...}}')
