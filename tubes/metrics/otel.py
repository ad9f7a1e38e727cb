"""Traces for OpenTelemetry: who put a task and who works on it are linked, across processes. Extra `otel`.

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
from tubes.drivers.options import Seconds
from tubes.errors import needs
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
    """Makes spans of puts, takes and the work on tasks. Without a tracer provider it makes none, and costs little.

    `provider`: whose spans they are; None: the global one.
    `propagator`: how a span is written into a task's context; None: `traceparent` and `tracestate`, as the W3C has it.

    A put is a span `put mail` of kind PRODUCER, and its trace travels in the task's `context`, beside what is there
    already. A take is a span `take mail`, and the work a span `process mail`, both of kind CONSUMER, each linked to the
    put of its task. Where no span is current when the work begins, the put is its parent too: one trace.

    Tubes may be of threads or of asyncio: for those of asyncio `put` and `take` are awaited.
    """

    def __init__(self, provider: TracerProvider | None = None, *, propagator: TextMapPropagator | None = None) -> None:
        self._tracer: Final = trace.get_tracer("tubes", tracer_provider=provider)
        self._propagator: Final = propagator or TraceContextTextMapPropagator()

    # -- putting -------------------------------------------------------------------------------------------------------

    @overload
    def put(self, tube: sync.Tube[T], data: T, *, timeout: None = None, **options: Unpack[PutOptions]) -> Task[T]: ...
    @overload
    def put(
        self, tube: sync.Tube[T], data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]
    ) -> Task[T] | None: ...
    @overload
    def put(
        self, tube: aio.AsyncTube[T], data: T, *, timeout: None = None, **options: Unpack[PutOptions]
    ) -> Awaitable[AsyncTask[T]]: ...
    @overload
    def put(
        self, tube: aio.AsyncTube[T], data: T, *, timeout: Seconds | None, **options: Unpack[PutOptions]
    ) -> Awaitable[AsyncTask[T] | None]: ...
    def put(self, tube: Any, data: object, **options: Any) -> Any:
        """`tube.put` in a span. Raises what that raises."""
        return self._traced("put", tube, lambda: tube.put(data, **self._with_context(options)), _say)

    @overload
    def put_many(
        self,
        tube: sync.Tube[T],
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = None,
        **options: Unpack[PutOptions],
    ) -> list[Task[T]]: ...
    @overload
    def put_many(
        self,
        tube: aio.AsyncTube[T],
        items: Iterable[T | Item[T]],
        *,
        timeout: Seconds | None = None,
        **options: Unpack[PutOptions],
    ) -> Awaitable[list[AsyncTask[T]]]: ...
    def put_many(self, tube: Any, items: Iterable[object], **options: Any) -> Any:
        """`tube.put_many` in one span, to which all its tasks are linked. Raises what that raises."""

        def put() -> Any:
            return tube.put_many(self._each_with_context(items), **self._with_context(options))

        return self._traced("put_many", tube, put, _count)

    def _with_context(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the current span in the context; whoever gave one of the same names keeps it."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)  # pyright: ignore[reportArgumentType]
        given = options.get("context")
        if not carrier or (given is not None and not isinstance(given, Mapping)):
            return dict(options)  # What is no mapping the put refuses.
        return {**options, "context": carrier | dict(given or {})}  # pyright: ignore[reportUnknownArgumentType]

    def _each_with_context(self, items: Iterable[object]) -> Iterable[object]:
        for item in items:
            if isinstance(item, Item) and "context" in item.options:
                yield Item(item.data, **self._with_context(item.options))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            else:
                yield item

    # -- taking --------------------------------------------------------------------------------------------------------

    @overload
    def take(self, tube: sync.Tube[T], timeout: Seconds | None = None) -> Task[T] | None: ...
    @overload
    def take(self, tube: aio.AsyncTube[T], timeout: Seconds | None = None) -> Awaitable[AsyncTask[T] | None]: ...
    def take(self, tube: Any, timeout: Seconds | None = None) -> Any:
        """`tube.take` in a span, which lasts as long as the wait, and is linked to the task's put."""
        return self._traced("take", tube, lambda: tube.take(timeout), self._link)

    def _link(self, span: Span, task: Task | AsyncTask | None) -> None:
        if task is None:
            span.set_attribute(conventions.BATCH_COUNT, 0)
            return
        _say(span, task)
        origin = self.origin(task)
        if origin is not None:
            span.add_link(origin)

    # -- working -------------------------------------------------------------------------------------------------------

    @contextmanager
    def process(self, task: Task | AsyncTask) -> Generator[Span]:
        """The work on a task, as a span that is current in the block. What the block raises is noted in it.

        For a worker: `worker.around(tracing.process)`.
        """
        origin = self.origin(task)
        parent: Context | None = None
        if origin is not None and not trace.get_current_span().get_span_context().is_valid:
            parent = self._extract(task)
        links = [] if origin is None else [Link(origin)]
        with self._span("process", task.tube, SpanKind.CONSUMER, parent, links) as span:
            _say(span, task)
            yield span

    def origin(self, task: Task | AsyncTask) -> SpanContext | None:
        """The span in which a task was put; None if it was put without one."""
        found = trace.get_current_span(self._extract(task)).get_span_context()
        return found if found.is_valid else None

    def _extract(self, task: Task | AsyncTask) -> Context:
        return self._propagator.extract(dict(task.context or {}), context=Context())

    def _traced(self, operation: str, tube: Any, call: Callable[[], Any], say: Callable[[Span, Any], None]) -> Any:
        """Call in a span, of which `say` tells what came of it; for asyncio something to await."""
        kind = SpanKind.CONSUMER if operation == "take" else SpanKind.PRODUCER
        if isinstance(tube, aio.AsyncTube):
            return self._traced_async(operation, tube.name, kind, call, say)
        with self._span(operation, tube.name, kind) as span:
            answer = call()
            say(span, answer)
            return answer

    async def _traced_async(
        self, operation: str, tube: str, kind: SpanKind, call: Callable[[], Any], say: Callable[[Span, Any], None]
    ) -> Any:
        with self._span(operation, tube, kind) as span:
            answer = await call()
            say(span, answer)
            return answer

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
                # What an error says of itself is somebody's code: where that fails the error is still what is raised.
                words = type(error).__qualname__
                with suppress(Exception):
                    words = str(error)
                    span.record_exception(error)
                span.set_status(StatusCode.ERROR, words)
                raise


def _count(span: Span, tasks: list[Any]) -> None:
    span.set_attribute(conventions.BATCH_COUNT, len(tasks))


def _say(span: Span, task: Task | AsyncTask | None) -> None:
    if task is not None:
        span.set_attributes(conventions.about(task))
