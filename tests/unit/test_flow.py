"""Flows do the same in a thread and in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tubes.backend.flow import Flow, Sleep, run, run_async

Runner = Callable[[Flow[int, Any], Callable[[int], int]], Any]


def run_in_loop(flow: Flow[int, Any], ask: Callable[[int], int]) -> Any:
    async def ask_async(step: int) -> int:
        await asyncio.sleep(0)
        return ask(step)

    return asyncio.run(run_async(flow, ask_async))


@pytest.fixture(params=[run, run_in_loop])
def runner(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner


def test_a_flow_gets_the_result_of_each_step(runner: Runner) -> None:
    def flow() -> Generator[int | Sleep, Any, str]:
        one = yield 1
        rested = yield Sleep(0.0)
        two = yield one + 1
        return f"{one} {rested} {two}"

    assert runner(flow(), lambda step: step * 10) == "10 None 110"


def test_an_error_of_a_step_is_raised_where_the_flow_yielded_it(runner: Runner) -> None:
    def flow() -> Generator[int | Sleep, Any, str]:
        try:
            yield 0
        except ZeroDivisionError:
            after = yield 2
            return f"rescued {after}"
        return "not reached"

    assert runner(flow(), lambda step: 2 // step) == "rescued 1"


def test_uncaught_error_ends_a_flow(runner: Runner) -> None:
    ended: list[int] = []

    def flow() -> Generator[int | Sleep, Any, str]:
        try:
            yield 0
        finally:
            ended.append(1)
        return "not reached"

    with pytest.raises(ZeroDivisionError):
        runner(flow(), lambda step: 2 // step)
    assert ended == [1]


def test_cancelling_a_flow_cancels_its_step() -> None:
    caught: list[type[BaseException]] = []

    def flow() -> Generator[int | Sleep, Any, None]:
        try:
            yield Sleep(3600.0)
        except BaseException as error:
            caught.append(type(error))
            raise

    async def main() -> None:
        task = asyncio.create_task(run_async(flow(), asyncio.sleep))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert caught == [asyncio.CancelledError]
