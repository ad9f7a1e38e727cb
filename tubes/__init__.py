"""Task tubes with the semantics of Tarantool's queue, in memory with nothing to start, or on Redis.

>>> import tubes
>>> with tubes.connect() as queue:
...     crawl = queue.create_tube("crawl", "utubettl", ttr=60)
...     _ = crawl.put({"url": "https://example.com/"}, utube="example.com", pri=1)
...     with crawl.taking(timeout=5) as task:
...         print(task.data["url"])
https://example.com/
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tubes.backend.clock import Clock, SystemClock
from tubes.drivers.backoff import Backoff
from tubes.drivers.driver import Driver
from tubes.drivers.failures import Failure
from tubes.drivers.moves import State
from tubes.errors import (
    CallFailed,
    CallTimeout,
    CodecError,
    ConnectionLost,
    DriverExists,
    DriverNotFound,
    DuplicateKey,
    ExtraMissing,
    InvalidOption,
    NothingReady,
    OptionNotSupported,
    QueueClosed,
    QueueForked,
    ServerFull,
    ServerRefused,
    SessionNotFound,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    TaskCancelled,
    TaskNotFound,
    TaskNotTaken,
    TubeBusy,
    TubeExists,
    TubeFull,
    TubeNotFound,
    TubesError,
    Unreadable,
)
from tubes.sync import Queue, Task, Tube, connect
from tubes.values.batch import Item
from tubes.values.codecs import Codec, JsonCodec, MsgpackCodec, RawCodec
from tubes.values.lane import LaneInfo
from tubes.values.lease import Lease
from tubes.values.options import PutOptions, TaskOptions, TubeOptions
from tubes.values.overview import FolderUsage, Overview
from tubes.values.problem import Problem
from tubes.values.statistics import Statistics
from tubes.values.task_data import task_data
from tubes.values.worker_info import WorkerInfo

if TYPE_CHECKING:
    from tubes import aio, testing
    from tubes.aio import AsyncQueue, AsyncTask, AsyncTube


#: The version of this release; pyproject.toml reads it here.
__version__ = "0.1.0"

__all__ = [
    "AsyncQueue",
    "AsyncTask",
    "AsyncTube",
    "Backoff",
    "CallFailed",
    "CallTimeout",
    "Clock",
    "Codec",
    "CodecError",
    "ConnectionLost",
    "Driver",
    "DriverExists",
    "DriverNotFound",
    "DuplicateKey",
    "ExtraMissing",
    "Failure",
    "FolderUsage",
    "InvalidOption",
    "Item",
    "JsonCodec",
    "LaneInfo",
    "Lease",
    "MsgpackCodec",
    "NothingReady",
    "OptionNotSupported",
    "Overview",
    "Problem",
    "PutOptions",
    "Queue",
    "QueueClosed",
    "QueueForked",
    "RawCodec",
    "ServerFull",
    "ServerRefused",
    "SessionNotFound",
    "State",
    "Statistics",
    "StoreBusy",
    "StoreFailed",
    "StoreFull",
    "StoreReadOnly",
    "SystemClock",
    "Task",
    "TaskCancelled",
    "TaskNotFound",
    "TaskNotTaken",
    "TaskOptions",
    "Tube",
    "TubeBusy",
    "TubeExists",
    "TubeFull",
    "TubeNotFound",
    "TubeOptions",
    "TubesError",
    "Unreadable",
    "WorkerInfo",
    "__version__",
    "aio",
    "connect",
    "task_data",
    "testing",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # Type checkers report unknown names themselves.

    def __getattr__(name: str) -> object:
        # Imported on first use: many programs need only one of both APIs, and no tests.
        if name in ("aio", "AsyncQueue", "AsyncTask", "AsyncTube"):
            aio = import_module("tubes.aio")
            return aio if name == "aio" else getattr(aio, name)
        if name == "testing":
            return import_module("tubes.testing")
        if name in ("Bury", "Interrupted", "Retry", "Worker", "current_task", "retry_after"):
            raise ImportError(f"cannot import name {name!r} from 'tubes': from tubes.worker import {name}")
        raise AttributeError(f"module 'tubes' has no attribute {name!r}")
