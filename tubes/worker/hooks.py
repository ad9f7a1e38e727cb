"""Hooks around handlers, for logs and traces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeAlias

from tubes.errors import InvalidOption

#: A user's function that takes a task, plain or async.
Handler: TypeAlias = Callable[[Any], Any]
#: A function that takes a task and returns a context manager.
Hook: TypeAlias = Callable[[Any], Any]


def check_hook(hook: object, option: str) -> Hook:
    """Return the user's hook as a function that returns a context manager. Raises `InvalidOption`."""
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        rule = "must be a generator function that yields once, or a function that returns a context manager"
        raise InvalidOption(option=option, value=hook, rule=rule)
    if inspect.isgeneratorfunction(hook):
        return contextmanager(hook)
    if inspect.isasyncgenfunction(hook):
        return asynccontextmanager(hook)
    made: Hook = hook
    return made


def wrap(hooks: list[Hook], handler: Handler) -> Handler:
    """Wrap a plain handler in its hooks, the first one outermost."""
    if not hooks:
        return handler

    def wrapped(task: object) -> object:
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook(task))
            return handler(task)
        return None  # A hook has handled the error.

    return wrapped


def wrap_async(hooks: list[Hook], handler: Handler) -> Handler:
    """Wrap an async handler in its hooks, whose context managers may be plain or async."""
    if not hooks:
        return handler

    async def wrapped(task: object) -> object:
        async with AsyncExitStack() as stack:
            for hook in hooks:
                await enter(stack, hook(task))
            return await handler(task)
        return None  # A hook has handled the error.

    return wrapped


async def enter(stack: AsyncExitStack, manager: Any) -> None:
    """Enter a context manager, plain or async."""
    if hasattr(manager, "__aenter__"):
        await stack.enter_async_context(manager)
    else:
        stack.enter_context(manager)
