"""Traces for OpenTelemetry that link the put of a task with the work on it, across processes. Extra `otel`.

>>> import tubes
>>> from tubes.metrics.otel import Tracing
>>> tracing = Tracing()
>>> with tubes.connect() as queue:
...     mail = queue.create_tube("mail")
...     _ = tracing.put(mail, "to ann")
...     task = tracing.take(mail, timeout=5)
...     with tracing.process(task), task:
...         print(task.data)
to ann
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, overload

from typing_extensions import Unpack

from tubes import aio, sync
from tubes.aio import AsyncTask
from tubes.drivers.options import NO_WAIT, Seconds
from tubes.errors import Facts, needs
from tubes.metrics import conventions
from tubes.sync import Task
from tubes.values.batch import Item
from tubes.values.options import PutOptions
from tubes.values.task import T

with needs("tubes.metrics.otel", "otel"):
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


class Tracing:
    """Records spans for puts, takes and the work on tasks. Without a tracer provider it records nothing at little cost.

    `provider`: the tracer provider; None: the global one.
    `propagator`: writes a span into a task's context; None: as the W3C headers `traceparent` and `tracestate`.

    A put is a span `put mail` of kind PRODUCER, which is stored in the task's `context`. A take is a span `take mail`,
    and the work is a span `process mail`, both of kind CONSUMER and linked to the put of the task. If no span is
    current when the work starts, the put is also its parent, so both are in one trace.

    It works with the tubes of both APIs; with asyncio, await `put` and `take`.
    """

    def __init__(self, provider: TracerProvider | None = None, *, propagator: TextMapPropagator | None = None) -> None:
        self._tracer: Final = trace.get_tracer("tubes", tracer_provider=provider)
        self._propagator: Final = propagator or TraceContextTextMapPropagator()

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    def put(
        self, tube: sync.Tube[T], data: T, *, timeout: None = NO_WAIT, **options: Unpack[PutOptions]
    ) -> Task[T]: ...
    @overload
    def put(
        self, tube: sync.Tube[T], data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]
    ) -> Task[T] | None: ...
    @overload
    def put(
        self, tube: aio.AsyncTube[T], data: T, *, timeout: None = NO_WAIT, **options: Unpack[PutOptions]
    ) -> Awaitable[AsyncTask[T]]: ...
    @overload
    def put(
        self, tube: aio.AsyncTube[T], data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]
    ) -> Awaitable[AsyncTask[T] | None]: ...
    def put(self, tube: Any, data: object, **options: Any) -> object:
        """Call `tube.put` in a span. Raises the same errors."""
        return self._trace("put", tube, lambda: tube.put(data, **self._add_context(options)), _set_attributes)

    @overload
    def put_many(
        self,
        tube: sync.Tube[T],
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        **options: Unpack[PutOptions],
    ) -> list[Task[T]]: ...
    @overload
    def put_many(
        self,
        tube: aio.AsyncTube[T],
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = NO_WAIT,
        **options: Unpack[PutOptions],
    ) -> Awaitable[list[AsyncTask[T]]]: ...
    def put_many(self, tube: Any, items: Iterable[object], **options: Any) -> object:
        """Call `tube.put_many` in one span, to which all new tasks are linked. Raises the same errors."""

        def put() -> object:
            return tube.put_many(self._add_contexts(items), **self._add_context(options))

        return self._trace("put_many", tube, put, _count)

    def _add_context(self, options: Mapping[str, object]) -> Facts:
        """Add the current span to the context in the options. Names that the caller set are kept."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)  # pyright: ignore[reportArgumentType]
        context = options.get("context")
        if not carrier or (context is not None and not isinstance(context, Mapping)):
            return dict(options)  # The put refuses a context that is not a mapping.
        return {**options, "context": carrier | dict(context or {})}  # pyright: ignore[reportUnknownArgumentType]

    def _add_contexts(self, items: Iterable[object]) -> Iterable[object]:
        for item in items:
            if isinstance(item, Item) and "context" in item.options:
                yield Item(item.data, **self._add_context(item.options))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            else:
                yield item

    # -- taking --------------------------------------------------------------------------------------------------------

    @overload
    def take(self, tube: sync.Tube[T], timeout: Seconds | None = None) -> Task[T] | None: ...
    @overload
    def take(self, tube: aio.AsyncTube[T], timeout: Seconds | None = None) -> Awaitable[AsyncTask[T] | None]: ...
    def take(self, tube: Any, timeout: Seconds | None = None) -> object:
        """Call `tube.take` in a span, which includes the wait and is linked to the put of the task."""
        return self._trace("take", tube, lambda: tube.take(timeout), self._link)

    def _link(self, span: Span, task: Task | AsyncTask | None) -> None:
        if task is None:
            span.set_attribute(conventions.BATCH_COUNT, 0)
            return
        _set_attributes(span, task)
        origin = self.origin(task)
        if origin is not None:
            span.add_link(origin)

    # -- working -------------------------------------------------------------------------------------------------------

    @contextmanager
    def process(self, task: Task | AsyncTask) -> Generator[Span]:
        """Open a span for the work on a task, which is current in the block. It records an error of the block.

        For a worker: `worker.around(tracing.process)`.
        """
        origin = self.origin(task)
        parent: Context | None = None
        if origin is not None and not trace.get_current_span().get_span_context().is_valid:
            parent = self._extract(task)
        links = [] if origin is None else [Link(origin)]
        with self._span("process", task.tube, SpanKind.CONSUMER, parent, links) as span:
            _set_attributes(span, task)
            yield span

    def origin(self, task: Task | AsyncTask) -> SpanContext | None:
        """Return the span in which a task was put; None if it was put without a span."""
        found = trace.get_current_span(self._extract(task)).get_span_context()
        return found if found.is_valid else None

    def _extract(self, task: Task | AsyncTask) -> Context:
        return self._propagator.extract(dict(task.context or {}), context=Context())

    def _trace(
        self, operation: str, tube: Any, call: Callable[[], Any], set_result: Callable[[Span, Any], None]
    ) -> object:
        """Call in a span. `set_result` adds the result to the span. For asyncio, returns an awaitable."""
        kind = SpanKind.CONSUMER if operation == "take" else SpanKind.PRODUCER
        if isinstance(tube, aio.AsyncTube):
            return self._trace_async(operation, tube.name, kind, call, set_result)
        with self._span(operation, tube.name, kind) as span:
            result = call()
            set_result(span, result)
            return result

    async def _trace_async(
        self,
        operation: str,
        tube: str,
        kind: SpanKind,
        call: Callable[[], Any],
        set_result: Callable[[Span, object], None],
    ) -> object:
        with self._span(operation, tube, kind) as span:
            result = await call()
            set_result(span, result)
            return result

    @contextmanager
    def _span(
        self,
        operation: str,
        tube: str,
        kind: SpanKind,
        parent: Context | None = None,
        links: list[Link] | None = None,
    ) -> Generator[Span]:
        with self._tracer.start_as_current_span(
            conventions.span_name(operation, tube),
            context=parent,
            kind=kind,
            attributes=conventions.attributes(operation, tube),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute(conventions.ERROR_TYPE, type(error).__qualname__)
                # The error's __str__ is user code: if it fails, the error itself is still raised.
                text = type(error).__qualname__
                with suppress(Exception):
                    text = str(error)
                    span.record_exception(error)
                span.set_status(StatusCode.ERROR, text)
                raise


def _count(span: Span, tasks: list[object]) -> None:
    span.set_attribute(conventions.BATCH_COUNT, len(tasks))


def _set_attributes(span: Span, task: Task | AsyncTask | None) -> None:
    if task is not None:
        span.set_attributes(conventions.task_attributes(task))
