"""The names of spans and attributes, from OpenTelemetry's conventions for messaging.

They follow the semantic conventions 1.3x, which call them experimental: if they change, only this file must change.
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tubes.errors import CodecError
from tubes.values.task_data import function_of

if TYPE_CHECKING:
    from tubes.values.task import TaskView

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
#: Attributes that only tubes has, in the namespace that the conventions reserve for a system.
UTUBE: Final = "messaging.tubes.utube"
ATTEMPTS: Final = "messaging.tubes.attempts"
FUNCTION: Final = "messaging.tubes.function"

#: Operations of tubes, and their types in the conventions.
OPERATIONS: Final = {
    "put": "send",
    "put_many": "send",
    "take": "receive",
    "take_many": "receive",
    "process": "process",
}


def span_name(operation: str, tube: str) -> str:
    """Return the name of a span: `{operation} {destination}`.

    >>> span_name("put", "mail")
    'put mail'
    """
    return f"{operation} {tube}"


def attributes(operation: str, tube: str) -> dict[str, str | int]:
    """Return the attributes of every span of an operation.

    >>> attributes("take", "mail")["messaging.operation.type"]
    'receive'
    """
    return {
        SYSTEM: "tubes",
        DESTINATION: tube,
        OPERATION_NAME: operation,
        OPERATION_TYPE: OPERATIONS[operation],
    }


def task_attributes(task: TaskView) -> dict[str, str | int]:
    """Return the additional attributes of a span about one task."""
    found: dict[str, str | int] = {MESSAGE_ID: str(task.id), ATTEMPTS: task.attempts}
    if task.utube is not None:
        found[UTUBE] = task.utube
    with suppress(CodecError):
        function = function_of(task.data)
        if function is not None:
            found[FUNCTION] = function
    return found
