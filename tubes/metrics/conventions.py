"""OpenTelemetry's conventions for messaging, as far as tubes follows them: all names of spans and attributes.

They are those of semantic conventions 1.3x, which still call them experimental: where they change, this file does.
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubes.values.task import TaskView

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
#: Those of tubes alone, in the namespace that the conventions give to a system.
UTUBE: Final = "messaging.tubes.utube"
ATTEMPTS: Final = "messaging.tubes.attempts"

#: What tubes calls the operations, and what the conventions call their kinds.
OPERATIONS: Final = {
    "put": "send",
    "put_many": "send",
    "take": "receive",
    "take_many": "receive",
    "process": "process",
}


def span_name(operation: str, tube: str) -> str:
    """`{operation} {destination}`.

    >>> span_name("put", "mail")
    'put mail'
    """
    return f"{operation} {tube}"


def attributes(operation: str, tube: str) -> dict[str, str | int]:
    """What every span of an operation says.

    >>> attributes("take", "mail")["messaging.operation.type"]
    'receive'
    """
    return {
        SYSTEM: "tubes",
        DESTINATION: tube,
        OPERATION_NAME: operation,
        OPERATION_TYPE: OPERATIONS[operation],
    }


def about(task: TaskView) -> dict[str, str | int]:
    """What a span about one task says of it."""
    said: dict[str, str | int] = {MESSAGE_ID: str(task.id), ATTEMPTS: task.attempts}
    if task.utube is not None:
        said[UTUBE] = task.utube
    return said
