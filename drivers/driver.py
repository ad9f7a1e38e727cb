"""A driver is a value: the options of its tasks, their order, and their lanes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from tubes.drivers import options as known
from tubes.drivers.moves import State
from tubes.drivers.tube_options import OF_TUBES, check_bursts, convert_lane_rate
from tubes.errors import InvalidOption, OptionNotSupported, did_you_mean

#: Checks the value of an option by its name, and returns it in the machine's units.
Check = Callable[[str, Any], Any]

# The options that `update` may change.
_CHANGES: Final = frozenset({"pri", "delay", "ttl"})
DRIVER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}")
#: Matches the names of tubes and namespaces.
TUBE_NAME: Final = re.compile(r"[A-Za-z0-9_.:+/;$()-]{1,255}")
_ORDERS: Final = {
    "id": (0, 1),
    "-id": (0, -1),
    "pri": (1, 1),
    "pri,id": (1, 1),
    "pri,-id": (1, -1),
    "-pri": (-1, 1),
    "-pri,id": (-1, 1),
    "-pri,-id": (-1, -1),
}


#: Matches the names of the library's own tubes: the list of workers, and the reply tubes of calls.
RESERVED: Final = re.compile(r"tubes\..*|reply\.[0-9a-f]{26}|.*#.*")
#: Matches the names of partitions: see `tubes/partitions/layout.py`.
PARTITION: Final = re.compile(r"[^#]+#[0-9]+\.[0-9]+\.[0-9a-z]{4}")
#: The rule for names of drivers and of stores in memory.
NAMES: Final = "1 to 32 characters of A-Z, a-z, 0-9, '_', '-' and '.'"
#: The rule for names of tubes and namespaces.
TUBE_NAMES: Final = "1 to 255 characters of A-Z, a-z, 0-9, and _ - . : + / ; $ ( )"


def is_name(name: str) -> bool:
    """Return True if this is a valid name of a driver or of a store in memory."""
    return DRIVER_NAME.fullmatch(name) is not None


def is_tube_name(name: str) -> bool:
    """Return True if this is a valid name of a tube or of a namespace.

    Each key of a tube contains both names in braces, with an @ between them, so names must not contain these.
    """
    return TUBE_NAME.fullmatch(name) is not None


def check_name(what: str, name: Any) -> str:
    """Check the name of a driver or of a store in memory."""
    if not isinstance(name, str) or not is_name(name):
        raise InvalidOption(option=what, value=name, rule=f"must be {NAMES}")
    return str.__str__(name)


def check_namespace(name: Any) -> str:
    """Check the name of a namespace; '' is the namespace of tubes without one."""
    if not isinstance(name, str) or (name and not is_tube_name(name)):
        raise InvalidOption(option="namespace", value=name, rule=f"must be {TUBE_NAMES}, or '' for none")
    return str.__str__(name)


def check_tube_name(name: Any) -> str:
    """Check the name of a user's tube."""
    if not isinstance(name, str) or not is_tube_name(name):
        raise InvalidOption(option="tube", value=name, rule=f"must be {TUBE_NAMES}")
    if RESERVED.fullmatch(name):
        rule = "is reserved: names that begin with 'tubes.', or are 'reply.' and 26 hex digits, are the library's own"
        raise InvalidOption(option="tube", value=name, rule=rule)
    return str.__str__(name)


def check_stored_name(name: Any) -> str:
    """Check the name of a user's tube, or of one of its partitions."""
    return name if isinstance(name, str) and PARTITION.fullmatch(name) else check_tube_name(name)


def _check_options(options: Any, lane: Any) -> frozenset[str]:
    """Check the options of a driver: known names, and the name of its lane."""
    if isinstance(options, str) or not isinstance(options, Iterable):
        raise InvalidOption(option="options", value=options, rule="must be a collection of names")
    wanted: list[Any] = list(options)  # pyright: ignore[reportUnknownArgumentType]
    if not all(isinstance(option, str) for option in wanted):
        raise InvalidOption(option="options", value=options, rule="must be a collection of names")
    if lane is not None and not (isinstance(lane, str) and lane in wanted and _may_name_a_lane(lane)):
        rule = "must be one of the driver's options, a Python name that is not another option of put"
        raise InvalidOption(option="lane", value=lane, rule=rule)
    for option in sorted(set(wanted) - {lane}):
        if option in ("utube", "at") or option not in known.OF_TASKS | OF_TUBES:
            rule = f"must be the lane, or one of {sorted((known.OF_TASKS | OF_TUBES).keys() - {'utube', 'at'})}"
            raise InvalidOption(option="options", value=option, rule=rule)
    return frozenset(wanted)


def _may_name_a_lane(name: str) -> bool:
    if name == "utube":
        return True
    return name.isidentifier() and name not in known.OF_TASKS | OF_TUBES and name not in ("self", "data")


class Ranked(Protocol):
    """The argument of a `rank` function: the facts of a task that never change while it waits."""

    @property
    def id(self) -> int: ...
    @property
    def pri(self) -> int: ...
    @property
    def created(self) -> int: ...


@dataclass(frozen=True, slots=True, repr=False)
class Driver:
    """The behavior of the tasks of a tube. Two drivers with equal fields are the same driver.

    `options`: the options of `put`: any of `ttl ttr delay pri` and the name of the lane. Every driver has the general
    options, such as `key`, `max_attempts` or a tube's `capacity`.
    `order`: which ready task comes first: `id` (oldest), `-id` (newest), `pri` (smallest number), `-pri`. After a
    priority, `,id` (the default) or `,-id` orders tasks of equal priority.
    `lane`: the option that names a task's lane. At most one task of a lane is taken at a time, unless `max_in_flight`
    allows more. A put may also call it `utube`, the name that type checkers know.
    `ttl_spares_taken`: the holder of a task may finish it after its ttl has expired.
    `rank`: a function that replaces `order`. It returns a number for the facts of a task; smaller numbers come first,
    and ties go by id.
    `rank_lua`: the same as a Lua expression, for servers.

    >>> Driver("lifo", options={"ttr"}, order="-id")
    Driver('lifo', options=['ttr'], order='-id')
    """

    name: str
    options: frozenset[str] = frozenset()
    order: str = "id"
    lane: str | None = None
    ttl_spares_taken: bool = False
    rank: Callable[[Ranked], float] | None = None
    rank_lua: str | None = None
    #: The sign of the priority (0: not used) and of the id in the order.
    signs: tuple[int, int] = field(init=False, repr=False, compare=False)
    # The checks of the options of a put and of a tube.
    _of_tasks: Mapping[str, Check] = field(init=False, repr=False, compare=False)
    _of_tubes: Mapping[str, Check] = field(init=False, repr=False, compare=False)
    # The factor for whole numbers, by the option of a put.
    _units: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        name: str,
        *,
        options: Iterable[str] = (),
        order: str = "id",
        lane: str | None = None,
        ttl_spares_taken: bool = False,
        rank: Callable[[Ranked], float] | None = None,
        rank_lua: str | None = None,
    ) -> None:
        check_name("driver", name)
        wanted = _check_options(options, lane)
        known.flag("ttl_spares_taken", ttl_spares_taken)
        if not isinstance(order, str) or order not in _ORDERS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="order", value=order, rule=f"must be one of {', '.join(_ORDERS)}")
        if _ORDERS[order][0] and "pri" not in wanted:
            raise InvalidOption(option="order", value=order, rule="needs 'pri' among the options")
        if rank is not None and not callable(rank):
            raise InvalidOption(option="rank", value=rank, rule="must be a function of a task")
        if rank is not None and order != "id":
            raise InvalidOption(option="order", value=order, rule="must be left out if rank is given")
        if rank_lua is not None and not isinstance(rank_lua, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(option="rank_lua", value=rank_lua, rule="must be a Lua expression, a string")
        if rank_lua is not None and rank is None:
            raise InvalidOption(option="rank_lua", value=rank_lua, rule="needs rank, the same order in Python")
        accepted = wanted | known.ANYWHERE
        if "ttl" in wanted:
            accepted |= known.WITH_TTL
        if "delay" in wanted:
            accepted |= known.WITH_DELAY
        if lane is not None:
            accepted |= known.WITH_LANE
        of_tasks = {option: check for option, check in known.OF_TASKS.items() if option in accepted}
        if lane is not None:
            of_tasks[lane] = known.lane
        of_tubes = {option: check for option, check in OF_TUBES.items() if option in accepted}
        units = {option: unit for option, unit in known.UNITS.items() if option in accepted}
        signs = _ORDERS[order]
        values = (name, wanted, order, lane, ttl_spares_taken, rank, rank_lua, signs, of_tasks, of_tubes, units)
        for slot, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, slot, value)

    def __repr__(self) -> str:
        arguments: dict[str, Any] = {}
        for each in fields(self)[1:]:
            if each.compare and (value := getattr(self, each.name)) != each.default:
                arguments[each.name] = sorted(value) if each.name == "options" else value
        return f"Driver({', '.join([repr(self.name), *(f'{name}={value!r}' for name, value in arguments.items())])})"

    def check_put(self, options: Mapping[str, Any], *, alone: bool = True) -> dict[str, Any]:
        """Check the options of a put, and convert them to the machine's units; options with None are dropped.

        `alone`: these are all options of the put. Otherwise an item may add options, such as a key.
        """
        checked: dict[str, Any] = {}
        units = self._units
        for option, value in options.items():
            # Most values are whole numbers, lanes or keys. Checking them here takes 30 % less time.
            if value.__class__ is int and option in units and 0 <= value <= known.MAX_SECONDS:
                checked[option] = value * units[option]
            elif value.__class__ is str and (option == self.lane or (option == "key" and value)):
                checked[option] = value
            else:
                return self._check_put(options, alone=alone)
        return checked

    def _check_put(self, options: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
        """Check the options of a put that has more than whole numbers and a lane."""
        if "utube" in options and self.lane is not None and self.lane != "utube":
            options = self._with_own_name(self.lane, options)
        # None is allowed even if the driver lacks the option.
        unset = {option for option, value in options.items() if value is None and option in known.OF_TASKS}
        remaining = {option: value for option, value in options.items() if option not in unset}
        most_waiting = remaining.pop(known.MAX_WAITING, None)
        checked = self._check(remaining, self._of_tasks)
        if most_waiting is not None:
            checked[known.MAX_WAITING] = most_waiting
        if "at" in checked and "delay" in checked:
            raise InvalidOption(option="at", value=options["at"], rule="must be left out if a delay is given")
        if alone and "key" not in checked and ("on_duplicate" in checked or "key_ttl" in checked):
            self.check_keyless(options)
        return checked

    @staticmethod
    def _with_own_name(lane: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Rename `utube` in the options of a put to the driver's own name for the lane."""
        renamed = dict(options)
        utube = renamed.pop("utube")
        if utube is None:
            return renamed
        if renamed.get(lane) is not None:
            rule = f"cannot be combined with {lane}, which names the same lane"
            raise InvalidOption(option="utube", value=utube, rule=rule)
        return renamed | {lane: utube}

    @staticmethod
    def check_keyless(options: Mapping[str, Any]) -> None:
        """Raise `InvalidOption` if a put without a key has an option of keys."""
        for option in ("on_duplicate", "key_ttl"):
            if options.get(option) is not None:
                raise InvalidOption(option=option, value=options[option], rule="is only for a put with a key")

    def takes_put(self, option: str) -> bool:
        """Return True if tasks of this driver can be put with this option."""
        return option in self._of_tasks or (option == "utube" and self.lane is not None)

    def check_tube(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Check the options of a tube, and convert them to the machine's units; options with None are dropped."""
        return check_bursts(convert_lane_rate(self._check(options, self._of_tubes), options))

    def check_alter(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Check changes of a tube's options, and convert them to the machine's units; None means the default."""
        for option in ("driver", "temporary"):
            if option in changes:
                rule = "cannot change after creation: create another tube, and let workers empty this one"
                raise InvalidOption(option=option, value=changes[option], rule=rule)
        return convert_lane_rate(dict.fromkeys(changes) | self._check(changes, self._of_tubes), changes)

    def fill(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return these options of a tube, and None for each other option of its driver."""
        return dict.fromkeys(self._of_tubes) | dict(options)

    def check_of(self, option: str) -> Check | None:
        """Return the check of an option of a tube, or None if there is no such option."""
        return self._of_tubes.get(option)

    def check_update(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Check the changes of an update, and convert them to the machine's units; `KEEP` values are dropped."""
        changes = {option: value for option, value in changes.items() if value is not known.KEEP}
        data = {"data": changes.pop("data")} if "data" in changes else {}
        checks = {option: check for option, check in self._of_tasks.items() if option in _CHANGES}
        for option, value in changes.items():
            if value is None:
                raise InvalidOption(option=option, value=value, rule="must be left out to keep its value")
            if option not in checks:
                raise self._not_supported(option, ["data", *checks], "update")
        return data | self._check(changes, checks)

    def make_update_error(self, changes: Mapping[str, Any], state: State) -> InvalidOption:
        """Make the error for a change that is not allowed in this state."""
        if "delay" in changes and state not in (State.READY, State.DELAYED):
            rule = "needs a ready or delayed task: release a taken one with a delay, kick a buried one first"
            return InvalidOption(option="delay", value=changes["delay"] / known.SECOND, rule=rule, current=str(state))
        rule = "cannot change while the task is taken: use touch"
        return InvalidOption(option="ttl", value=changes["ttl"] / known.SECOND, rule=rule, current=str(state))

    def id_at(self, place: bytes) -> int:
        """Return the id at the end of a place in the order: see `drivers/lua/ready.lua`."""
        id = int.from_bytes(place[-6:], "big")
        return 2**48 - 1 - id if self.signs[1] < 0 else id

    def check_kick(self, attempts: Any, ttl: Any) -> tuple[int | None, int | None]:
        """Check the options of a kick, and convert them to the machine's units."""
        most = None if attempts is None else known.attempts("attempts", attempts)
        if ttl is not None and "ttl" not in self._of_tasks:
            raise self._not_supported("ttl", ["attempts"], "kick")
        return most, None if ttl is None else known.micros("ttl", ttl)

    def _check(self, options: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        for option, value in options.items():
            check = checks.get(option)
            if check is None:
                raise self._not_supported(option, checks)
            if value is not None and (found := check(option, value)) is not None:
                checked[option] = found
        return checked

    def make_option_error(self, option: str) -> OptionNotSupported:
        """Make the error for an option that this driver does not have."""
        return self._not_supported(option, self.options)

    def make_lanes_error(self) -> OptionNotSupported:
        """Make the error for a method that needs lanes."""
        why = "use utube, utubettl, or a driver of your own with a lane"
        return OptionNotSupported(driver=self.name, option="utube", what="lanes", why=why)

    def _not_supported(self, option: str, accepted: Iterable[str], method: str = "") -> OptionNotSupported:
        # A misspelled option of another driver is named as well: the next error says that this driver lacks it.
        every = known.OF_TASKS if accepted is self._of_tasks else OF_TUBES if accepted is self._of_tubes else accepted
        hint = did_you_mean(option, every)
        if option in every:
            hint = f"; driver {'utubettl' if option in (*known.WITH_LANE, 'utube') else 'fifottl'!r} has it"
        what, why = f"option {option!r}", f"{method or 'it'} accepts {', '.join(sorted(accepted))}{hint}"
        if accepted is self._of_tasks and option in self._of_tubes:
            what, why = f"option {option!r} of tasks", "it is an option of their tube"
        elif not accepted:
            is_of_fifottl = option in _CHANGES | {"ttr"}
            why = "driver 'fifottl' has it" if is_of_fifottl else "its tasks have no options"
        return OptionNotSupported(driver=self.name, option=option, what=what, why=why)
