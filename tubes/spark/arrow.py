"""PyArrow without type stubs: everything imported from it is typed as `Any`."""

from importlib import import_module
from typing import Any, Final, TypeAlias

pa: Final[Any] = import_module("pyarrow")
pc: Final[Any] = import_module("pyarrow.compute")
RecordBatch: TypeAlias = Any
Array: TypeAlias = Any
DataType: TypeAlias = Any
