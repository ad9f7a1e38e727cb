"""Traces: spans of puts, takes and work are linked across processes, and follow the naming conventions."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

import tubes
from tests.support.taking import take_task
from tubes.metrics import conventions
from tubes.metrics.otel import Tracing
from tubes.worker import Worker


class Traced:
    """A `Tracing`, and the spans that it has recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)
        self.tracer = provider.get_tracer("test")

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def span_named(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.spans() if span.name == name)
        return span


@pytest.fixture
def traced() -> Traced:
    return Traced()


@pytest.fixture(params=["memory", "valkey"])
def queue(request: pytest.FixtureRequest) -> Iterator[tubes.Queue]:
    with tubes.connect("memory://" if request.param == "memory" else request.getfixturevalue("url")) as queue:
        yield queue


def split(spans: list[ReadableSpan], size: int) -> list[list[ReadableSpan]]:
    return [spans[start : start + size] for start in range(0, len(spans), size)]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_process_span_is_linked_to_put_span(queue: tubes.Queue, traced: Traced) -> None:
    crawl = queue.create_tube("crawl", "utube")
    traced.tracing.put(crawl, "/", utube="example.com", context={"who": "ann"})
    task = traced.tracing.take(crawl, timeout=0)
    assert task is not None
    assert task.context["who"] == "ann"
    with traced.tracing.process(task), task, traced.tracer.start_as_current_span("inside"):
        pass
    put, take, process, inside = (
        traced.span_named(name) for name in ("put crawl", "take crawl", "process crawl", "inside")
    )
    assert (put.kind, take.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER)
    for span in (take, process):
        assert [link.context.span_id for link in span.links] == [id_of(put)]
    assert process.parent is not None
    assert process.parent.span_id == id_of(put)
    assert inside.parent is not None
    assert inside.parent.span_id == id_of(process)
    assert attributes_of(process) == {
        "messaging.system": "tubes",
        "messaging.destination.name": "crawl",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "0",
        "messaging.tubes.attempts": 1,
        "messaging.tubes.utube": "example.com",
    }
    assert attributes_of(put)["messaging.operation.type"] == "send"
    assert attributes_of(take)["messaging.operation.type"] == "receive"


def test_current_span_stays_parent(queue: tubes.Queue, traced: Traced) -> None:
    mail = queue.create_tube("mail")
    with traced.tracer.start_as_current_span("request") as request:
        traced.tracing.put(mail, 1)
    task = take_task(mail)
    with traced.tracer.start_as_current_span("batch") as batch, traced.tracing.process(task):
        pass
    put, process = traced.span_named("put mail"), traced.span_named("process mail")
    assert put.parent is not None
    assert put.parent.span_id == request.get_span_context().span_id
    assert process.parent is not None
    assert process.parent.span_id == batch.get_span_context().span_id
    assert [link.context.span_id for link in process.links] == [id_of(put)]


def test_tasks_of_batch_are_linked_to_put_many_span(queue: tubes.Queue, traced: Traced) -> None:
    mail = queue.create_tube("mail")
    traced.tracing.put_many(mail, [1, tubes.Item(2, key="b"), tubes.Item(3, context={"who": "ann"})])
    put = traced.span_named("put_many mail")
    assert attributes_of(put)["messaging.batch.message_count"] == 3
    tasks = mail.take_many(5)
    for task in tasks:
        origin = traced.tracing.origin(task)
        assert origin is not None
        assert origin.span_id == id_of(put)
    assert tasks[2].context["who"] == "ann"


def test_span_records_error(queue: tubes.Queue, traced: Traced) -> None:
    mail = queue.create_tube("mail", "fifo")
    with pytest.raises(tubes.OptionNotSupported):
        traced.tracing.put(mail, 1, ttl=5)
    with pytest.raises(tubes.InvalidOption):
        traced.tracing.put(mail, 1, context=5)  # type: ignore[call-overload]
    task = mail.put(1)
    with pytest.raises(ZeroDivisionError), traced.tracing.process(task):
        _ = 1 // 0
    first, second, process = traced.spans()
    assert [attributes_of(span)["error.type"] for span in (first, second, process)] == [
        "OptionNotSupported",
        "InvalidOption",
        "ZeroDivisionError",
    ]
    assert process.status.status_code is StatusCode.ERROR
    assert [event.name for event in process.events] == ["exception"]


def test_exception_with_failing_str_is_reraised_unchanged(queue: tubes.Queue, traced: Traced) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    task = queue.create_tube("mail").put(1)
    with pytest.raises(Mute), traced.tracing.process(task):
        raise Mute
    (span,) = traced.spans()
    assert attributes_of(span)["error.type"].endswith("Mute")
    assert span.status.status_code is StatusCode.ERROR


def test_empty_take_and_untraced_task_have_spans_without_links(queue: tubes.Queue, traced: Traced) -> None:
    mail = queue.create_tube("mail")
    assert traced.tracing.take(mail, timeout=0) is None
    assert attributes_of(traced.span_named("take mail"))["messaging.batch.message_count"] == 0
    task = mail.put(1)
    assert traced.tracing.origin(task) is None
    with traced.tracing.process(task):
        pass
    process = traced.span_named("process mail")
    assert (process.parent, list(process.links)) == (None, [])


def test_async_queue_is_traced_like_sync_queue(url: str, traced: Traced) -> None:
    async def main(place: str) -> None:
        async with tubes.aio.connect(place) as queue:
            mail = await queue.create_tube("mail")
            await traced.tracing.put(mail, 1)
            await traced.tracing.put_many(mail, [2, 3])
            task = await traced.tracing.take(mail, timeout=0)
            assert task is not None
            with traced.tracing.process(task):
                await task.ack()

    for place in ("memory://", url):
        asyncio.run(main(place))
    names = [span.name for span in traced.spans()]
    assert names == ["put mail", "put_many mail", "take mail", "process mail"] * 2
    for put, take, process in (
        traced.spans()[:4:][0:1] + traced.spans()[2:4],
        traced.spans()[4:5] + traced.spans()[6:8],
    ):
        assert [link.context.span_id for link in take.links] == [id_of(put)]
        assert [link.context.span_id for link in process.links] == [id_of(put)]


@pytest.mark.full
def test_trace_continues_in_another_process(url: str, traced: Traced) -> None:
    program = """
import sys
import tubes
from opentelemetry.sdk.trace import TracerProvider
from tubes.metrics.otel import Tracing

provider = TracerProvider()
with tubes.connect(sys.argv[1]) as queue, provider.get_tracer("web").start_as_current_span("request") as request:
    Tracing(provider).put(queue.create_tube("mail"), "to ann")
    print(request.get_span_context().trace_id)
"""
    run = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=True)
    with tubes.connect(url) as queue:
        task = take_task(queue.tube("mail"))
        with traced.tracing.process(task), task:
            pass
    process = traced.span_named("process mail")
    assert process.context is not None
    assert process.context.trace_id == int(run.stdout)
    assert [link.context.trace_id for link in process.links] == [int(run.stdout)]


def test_worker_traces_its_handlers(queue: tubes.Queue, traced: Traced) -> None:
    mail = queue.create_tube("mail", max_attempts=1)
    traced.tracing.put(mail, "good")
    traced.tracing.put(mail, "bad")
    worker = Worker(queue)
    worker.around(traced.tracing.process)

    def work(task: tubes.Task) -> None:
        if task.data == "bad":
            raise ValueError(task.data)

    worker.on("mail", work)
    summary = worker.run(burst=True)
    assert (summary.acked, summary.buried) == (1, 1)
    spans = [span for span in traced.spans() if span.name == "process mail"]
    assert [attributes_of(span).get("error.type") for span in spans] == [None, "ValueError"]
    assert all(span.links for span in spans)


def test_missing_provider_adds_no_trace_context() -> None:
    with tubes.connect() as queue:
        mail = queue.create_tube("mail")
        tracing = Tracing()
        task = tracing.put(mail, 1)
        assert task is not None
        assert task.context == {}
        with tracing.process(task):
            pass


def test_attribute_names_match_semantic_conventions() -> None:
    known = {value for value in vars(messaging_attributes).values() if isinstance(value, str)}
    used = {getattr(conventions, name) for name in ("SYSTEM", "DESTINATION", "OPERATION_NAME", "OPERATION_TYPE")}
    used |= {conventions.MESSAGE_ID, conventions.BATCH_COUNT}
    assert used <= known
    assert conventions.ERROR_TYPE == error_attributes.ERROR_TYPE
    kinds = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
    assert set(conventions.OPERATIONS.values()) <= kinds


def test_convention_names_occur_only_in_conventions_module() -> None:
    root = Path(tubes.__file__).parent
    named = [path.name for path in root.rglob("*.py") if "messaging." in path.read_text()]
    assert named == ["conventions.py"]
    assert json.dumps(conventions.attributes("put", "mail"))
