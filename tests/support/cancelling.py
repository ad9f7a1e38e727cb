"""Cancelling takes of an event loop at random moments."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from tests.support.ledger import Ledger
    from tubes import AsyncTask

    Take = Callable[[], Coroutine[Any, Any, None]]
    Put = Callable[[int], Awaitable[object]]


async def work(ledger: Ledger, task: AsyncTask) -> None:
    """Record a take and ack it, even if cancelled."""
    ledger.record_take(task.id, task.attempts, task.data)
    done = asyncio.ensure_future(task.ack())
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await done
        raise
    finally:
        ledger.record_done(task.id, task.attempts)


async def cancel_all(rounds: int, take: Take, put: Put) -> int:
    """Start two takes in each round and cancel both shortly after a put; return how many were still running."""
    cancelled = 0
    for number in range(rounds):
        waiters = [asyncio.create_task(take()) for _ in range(2)]
        await put(number)
        for _ in range(random.randrange(6)):
            await asyncio.sleep(random.choice((0, 0, 0.0003)))
        for waiter in waiters:
            cancelled += waiter.cancel()
        for waiter in waiters:
            with suppress(asyncio.CancelledError):
                await waiter
    return cancelled


async def cancel_some(rng: random.Random, puts: int, take: Take, put: Put) -> None:
    """Start some takes before each put and cancel some of the running ones; cancel all at the end."""
    running: set[asyncio.Task[None]] = set()
    for number in range(puts):
        running |= {asyncio.create_task(take()) for _ in range(rng.randrange(4))}
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        for victim in rng.sample(sorted(running, key=id), min(len(running), rng.randrange(3))):
            victim.cancel()
        await put(number)
        running = {task for task in running if not task.done()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
