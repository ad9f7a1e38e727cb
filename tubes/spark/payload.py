"""Convert the rows of Arrow record batches to tasks: their data, and the options of their put."""

from __future__ import annotations

import datetime
import decimal
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from random import choice, randrange
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark import TaskContext
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, YearMonthIntervalType

from tubes.drivers.tube_options import MAX_PARTITIONS
from tubes.errors import CodecError, InvalidOption, TubesError
from tubes.partitions.port import find_tube, place_of
from tubes.spark.arrow import Array, RecordBatch, pa, pc
from tubes.spark.encoding import encoder, find_bad_value
from tubes.spark.server.bulk_write import Writer
from tubes.values.codecs import encode
from tubes.values.codecs import find as find_codec

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from tubes.backend.interface import Options
    from tubes.spark.server.bulk_write import Head
    from tubes.spark.settings import Settings
    from tubes.sync import Queue, Tube

_Runs: TypeAlias = "list[tuple[Head, list[bytes]]]"
_Convert: TypeAlias = Callable[[RecordBatch], _Runs]
#: Column that is an option of put -> its allowed Spark types, as prefixes of the type names.
_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "utube": ("string", "char", "varchar", "tinyint", "smallint", "int", "bigint", "boolean"),
    "pri": ("tinyint", "smallint", "int", "bigint"),
    "ttl": ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "interval"),
    "ttr": ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "interval"),
    "delay": ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "interval"),
    "key": ("string", "char", "varchar"),
    "max_attempts": ("tinyint", "smallint", "int", "bigint"),
    "context": ("map<string,string>",),
}
#: Columns of a read that cannot be written.
_READ_COLUMNS: Final = frozenset({"id", "state", "attempts", "reason", "created", "due", "expires"})
#: Columns that a read may add. They are recognized only together with all `_READ_COLUMNS`: other frames may use these
#: names for data.
_DONE_COLUMNS: Final = frozenset({"result", "why", "ended"})
#: Types whose values only Spark can read.
_SPARK_TYPES: Final = ("variant", "geometry", "geography")
#: Maximum size of the cache of task heads, by which the options of equal rows are checked once.
_MAX_HEADS: Final = 50_000


class Writers:
    """The writers of the tubes of a write, by name."""

    def __init__(self, settings: Settings, queue: Queue) -> None:
        self._settings: Final = settings
        self._queue: Final = queue
        self._found: Final[dict[str, tuple[Tube, list[Writer]]]] = {}
        self._by_name: Final[dict[str, Writer]] = {}

    def of(self, tube: object) -> tuple[Tube, list[Writer]]:
        """Return the tube for a value of the column `tube`, or the only tube, and the writer of each of its parts."""
        name = tube if self._settings.tubes else self._settings.tube
        if not isinstance(name, str) or name not in self._found:
            if not isinstance(name, str) or (self._settings.tubes and not self._settings.matches(name)):
                rule = f"must match the option tubes, {','.join(self._settings.tubes)!r}"
                raise InvalidOption(option="tube", value=tube, rule=rule)
            found = self._settings.of(name).find(self._queue)
            parts = [find_tube(self._queue, f"{name}#{number}") for number in range(found.partitions or 0)]
            self._found[name] = found, [Writer(part) for part in parts or (found,)]
            self._by_name.update((writer.tube.name, writer) for writer in self._found[name][1])
        return self._found[name]

    def by_name(self, name: str) -> Writer:
        """Return the writer of a tube or partition that `of` has found."""
        return self._by_name[name]

    def open_to(self, tube: object, options: Options) -> list[Writer]:
        """Return the writers that may put a task with these checked options."""
        found, writers = self.of(tube)
        place = place_of(found, options) if found.partitions else None
        return writers if place is None else [writers[place]]


@dataclass(frozen=True)
class Payload:
    """The columns of a frame that hold the data of tasks, and those that hold options of their puts."""

    settings: Settings
    #: The column with the data; None: the data is an object of all `fields`.
    data: str | None
    fields: tuple[str, ...]
    options: tuple[str, ...]
    #: The columns by which rows are sorted, so that the rows of a tube or lane become one run.
    groups: tuple[str, ...] = ()
    #: Columns that INSERT INTO fills with null and that are not options of this tube's puts.
    blank: tuple[str, ...] = ()

    @classmethod
    def plan(cls, settings: Settings, schema: StructType) -> Payload:
        """Return the layout of a frame with this schema. Raises `InvalidOption` if it cannot be written to the tube."""
        _check_names("", schema)
        for field in schema.fields:
            _check_type(field.name, field.dataType, settings.codec)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name in types:
            if name.lower() != name and name.lower() in {"data", *_OPTIONS}:
                rule = f"must be written {name.lower()}, since Spark ignores case; or rename it"
                raise InvalidOption(option="column", value=name, rule=rule)
        blank = _find_blank(settings, types)
        types = {name: kind for name, kind in types.items() if name not in blank}
        if settings.tubes:
            _check_routes(types)
        routes = ("tube",) if settings.tubes else ()
        options = tuple(name for name in types if name in _OPTIONS)
        fields = tuple(name for name in types if name not in _OPTIONS and name not in routes)
        # Of tasks with one key the order matters, even if they have different lanes.
        groups = (*routes, "utube") if "utube" in options and "key" not in options else routes
        data = "data" if "data" in types else None
        if data is not None and len(fields) > 1:
            others = [name for name in fields if name != "data"]
            rule = f"must be data or an option of put ({', '.join(_OPTIONS)}): drop it, or make it part of data"
            raise InvalidOption(option="column", value=others[0], rule=rule)
        if not fields:
            raise InvalidOption(
                option="columns", value=list(types), rule="need a column data, or columns that become data"
            )
        for name in fields:
            if data is None and name in _READ_COLUMNS:
                rule = "has the name of a column that only reads have: drop it, rename it, or use struct(*) as data"
                raise InvalidOption(option="column", value=name, rule=rule)
        for name in options:
            if not types[name].startswith(_OPTIONS[name]):
                rule = f"must have one of the types {', '.join(_OPTIONS[name])}"
                raise InvalidOption(option="column", value=f"{name} {types[name]}", rule=rule)
        _check_data(settings, types["data"] if data else "struct")
        with settings.share() as queue:
            keyed = {"key": "any"} if "key" in options else {}
            for driver in settings.find_drivers(queue):
                for name in options:
                    if not driver.takes_put(name):
                        raise driver.make_option_error(name)
                driver.check_put({**settings.defaults, **keyed})
            if not settings.tubes:
                settings.find(queue)
        return cls(settings, data, fields, options, groups, blank)

    def runs(self, writers: Writers, batches: Iterable[RecordBatch]) -> Iterator[tuple[Head, list[bytes]]]:
        """Yield the tasks of record batches as runs of one tube with equal options. The error of a bad row names it."""
        convert = self._converter(writers)
        rows = 0
        for batch in batches:
            try:
                runs = convert(batch)
            except TubesError as error:
                number, error = _find_bad_row(convert, batch, error)
                raise self._explain(batch.slice(number, 1), error, rows + number + 1) from None
            yield from runs
            rows += batch.num_rows

    def _converter(self, writers: Writers) -> _Convert:
        """Return the function that converts a record batch to runs."""
        encode = encoder(self.settings)
        routes = ("tube",) if self.settings.tubes else ()
        names = (*routes, *self.options)
        heads: dict[tuple[object, ...], list[Head]] = {}
        # Rows that may be in any partition go to each in turn. Few rows of many Spark tasks are spread, too.
        turn = randrange(MAX_PARTITIONS)

        def spread(heads: list[Head], raws: list[bytes]) -> _Runs:
            nonlocal turn
            if len(heads) == 1:
                return [(heads[0], raws)]
            first, turn = turn % len(heads), turn + len(raws)
            runs = [(head, raws[number :: len(heads)]) for number, head in enumerate(heads[first:] + heads[:first])]
            return [run for run in runs if run[1]]

        def convert(batch: RecordBatch) -> _Runs:
            for name in self.blank:
                if batch.column(name).null_count < batch.num_rows:
                    rule = f"must be null: a put to tube {self.settings.tube!r} does not accept it"
                    raise InvalidOption(option="column", value=name, rule=rule)
            if self.groups:
                # The rows of a group keep their order: Arrow's sort is stable.
                batch = batch.take(pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in self.groups]))
            data = batch.select(list(self.fields)).to_struct_array() if self.data is None else batch.column(self.data)
            raws = encode(data)
            if not names:
                return spread(self._heads(writers, None, ()), raws)
            runs: _Runs = []
            columns = [_values(batch.column(name)) for name in names]
            start = 0
            for values, rows in groupby(zip(*columns, strict=True)):
                known = heads.get(values)
                if known is None:
                    if len(heads) >= _MAX_HEADS:
                        heads.clear()
                    tube = values[0] if routes else None
                    known = heads[values] = self._heads(writers, tube, values[len(routes) :])
                end = start + len(list(rows))
                runs += spread(known, raws[start:end])
                start = end
            # The runs of a partition keep their order.
            return sorted(runs, key=lambda run: run[0].tube)

        return convert

    def runs_or_buried(self, writers: Writers, batches: Iterable[RecordBatch]) -> Iterator[tuple[Head, list[bytes]]]:
        """Yield runs like `runs`. A row that cannot be put becomes a buried task with the row's columns as data."""
        convert = self._converter(writers)
        for batch in batches:
            yield from self._bisect(writers, convert, batch)

    def _bisect(self, writers: Writers, convert: _Convert, batch: RecordBatch) -> Iterator[tuple[Head, list[bytes]]]:
        """Halve a batch until each bad row stands alone."""
        try:
            yield from convert(batch)
        except TubesError as error:
            half = batch.num_rows // 2
            if half:
                yield from self._bisect(writers, convert, batch.slice(0, half))
                yield from self._bisect(writers, convert, batch.slice(half))
            else:
                # A row without a valid tube fails the write.
                tube = batch.column("tube")[0].as_py() if self.settings.tubes else None
                writer = choice(writers.open_to(tube, {}))
                yield writer.buried_head(f"bad row: {self._explain(batch, error)}"), [self._dump(batch)]

    def _explain(self, row: RecordBatch, error: TubesError, number: int | None = None) -> TubesError:
        """Return the error of a row with the path of the bad value, and with the position of the row if given."""
        path = ""
        if isinstance(error, CodecError):
            path, found = find_bad_value(encoder(self.settings), [(name, row.column(name)) for name in self.fields])
            error = found or error
        words = []
        if number is not None:
            context = TaskContext.get()
            partition = "" if context is None else f" of partition {context.partitionId()}"
            tube = f" for tube {row.column('tube')[0].as_py()!r}" if self.settings.tubes else ""
            words = [f"row {number}{partition}{self._identify(row, path)}{tube}"]
        if path:
            words.append(f"column {path}")
        return type(error)(**{**error.facts, "row": ", ".join(words)}) if words else error

    def _identify(self, row: RecordBatch, path: str) -> str:
        """Return the value of a column by which a person finds the row: of its key, or of the first text or integer."""
        for name in sorted((*self.fields, *self.options), key=lambda name: name != "key"):
            value = row.column(name)[0]
            is_short = pa.types.is_string(value.type) or pa.types.is_integer(value.type)
            if is_short and value.is_valid and name != path:
                return f" ({name}={reprlib.repr(value.as_py())})"
        return ""

    def _dump(self, batch: RecordBatch) -> bytes:
        """Encode the only row of a batch for inspection: values that JSON lacks become text."""
        row: dict[str, object] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            row[name] = _to_json(column[0])
        return (
            json.dumps(row).encode() if self.settings.codec == "raw" else encode(find_codec(self.settings.codec), row)
        )

    def _heads(self, writers: Writers, tube: object, values: tuple[object, ...]) -> list[Head]:
        """Check the options of a row, and return its head for each place. Null means that the option is not set."""
        options = dict(self.settings.defaults)
        for name, value in zip(self.options, values, strict=True):
            if value is not None:
                options[name] = _put_option(value)
        if "key" not in options:
            options.pop("on_duplicate", None)
            options.pop("key_ttl", None)
        options = writers.of(tube)[0].driver.check_put(options)
        return [writer.head(options) for writer in writers.open_to(tube, options)]


def _find_bad_row(convert: _Convert, batch: RecordBatch, error: TubesError) -> tuple[int, TubesError]:
    """Return the number and the error of the first row that `convert` refuses; `error` is that of the whole batch."""
    first, end = 0, batch.num_rows
    while first < end:
        middle = (first + end) // 2
        try:
            convert(batch.slice(first, middle + 1 - first))
        except TubesError as found:
            end, error = middle, found
        else:
            first = middle + 1
    return first, error


def _find_blank(settings: Settings, types: dict[str, str]) -> tuple[str, ...]:
    """Return the columns that a put to this tube does not accept: an INSERT INTO has all columns of a read."""
    if not types.keys() >= _READ_COLUMNS:
        return ()
    with settings.share() as queue:
        drivers = settings.find_drivers(queue)
    blank = {*_READ_COLUMNS, *_DONE_COLUMNS}
    blank |= {name for name in _OPTIONS if not all(driver.takes_put(name) for driver in drivers)}
    return tuple(name for name in types if name in blank)


def _check_routes(types: dict[str, str]) -> None:
    """Check that a frame for several tubes names the tube of each row."""
    if not types.get("tube", "").startswith(("string", "char", "varchar")):
        rule = "needs a column tube of strings, which names the tube of each row; for one tube use the option tube"
        raise InvalidOption(option="columns", value=list(types), rule=rule)


def _values(column: Array) -> list[Any]:
    """Return the values of an option column in a hashable form: a map becomes a tuple of its pairs."""
    values: list[Any] = column.to_pylist()
    return [value if value is None else tuple(value) for value in values] if pa.types.is_map(column.type) else values


def _to_json(scalar: Any) -> object:
    """Convert a value to JSON. Values that JSON lacks become text. Arrow formats those that Python also lacks."""
    try:
        value = scalar.as_py(maps_as_pydicts="strict")
        return json.loads(json.dumps(value, default=str), parse_constant=str)
    except (TypeError, ValueError, LookupError, OverflowError):
        if scalar.is_valid and pa.types.is_struct(scalar.type):
            return {name: _to_json(part) for name, part in scalar.items()}
        if scalar.is_valid and pa.types.is_nested(scalar.type):
            return [_to_json(item) for item in scalar.values]
    except RecursionError:
        pass
    return pa.repeat(scalar, 1).to_string(indent=0, skip_new_lines=True)


def _put_option(value: Any) -> object:
    if value.__class__ is tuple:
        return dict(value)
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value.total_seconds() if isinstance(value, datetime.timedelta) else value


def _check_names(path: str, kind: StructType) -> None:
    """Check that no field occurs twice: JSON would keep only one of them."""
    names = [field.name for field in kind.fields]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        rule = "must occur only once: rename the other, or drop it"
        raise InvalidOption(option="column", value=f"{path}{duplicate}", rule=rule)


def _check_type(name: str, kind: DataType, codec: str) -> None:
    """Check that a column of this type can be written."""
    if isinstance(kind, YearMonthIntervalType):
        rule = "has no length in seconds: cast it to a number, or to an interval of days"
        raise InvalidOption(option="column", value=f"{name} {kind.simpleString()}", rule=rule)
    if isinstance(kind, BinaryType) and codec == "json":
        rule = "needs codec raw or msgpack: for JSON make it a string, for example with base64"
        raise InvalidOption(option="column", value=f"{name} binary", rule=rule)
    if kind.simpleString().startswith(_SPARK_TYPES):
        rule = "is a type that only Spark can read: make it a string, for example with to_json or ST_AsText"
        raise InvalidOption(option="column", value=f"{name} {kind.simpleString()}", rule=rule)
    if isinstance(kind, MapType):
        if isinstance(kind.keyType, (ArrayType, MapType, StructType)):
            rule = "has keys that JSON cannot have: make them strings, or make the map an array of its entries"
            raise InvalidOption(option="column", value=f"{name} {kind.simpleString()}", rule=rule)
        _check_type(name, kind.keyType, codec)
        _check_type(name, kind.valueType, codec)
    elif isinstance(kind, ArrayType):
        _check_type(name, kind.elementType, codec)
    elif isinstance(kind, StructType):
        _check_names(f"{name}.", kind)
        for field in kind.fields:
            _check_type(f"{name}.{field.name}", field.dataType, codec)


def _check_data(settings: Settings, kind: str) -> None:
    """Check that a column of this type can be the data."""
    text = kind == "string" or kind.startswith(("char", "varchar"))
    if settings.codec == "raw" and kind != "binary":
        raise InvalidOption(option="column", value=f"data {kind}", rule="must be binary with codec raw")
    if settings.data_format == "json" and not text:
        raise InvalidOption(option="column", value=f"data {kind}", rule="must be a string with dataFormat json")
