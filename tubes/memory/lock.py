"""A spin lock that never blocks in the operating system and survives `KeyboardInterrupt`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from time import sleep
from typing import Final

#: Failed attempts after which the owner counts as slow, and the seconds between two attempts from then on.
_FAST_ATTEMPTS: Final = 1000
_SLEEP: Final = 0.0005


class Lock:
    """Keeps other threads out of a critical section.

    With a lock of the operating system, an owner that loses the interpreter makes each other thread block. Each of them
    later gets the lock without the interpreter, so that the next one blocks as well: from then on every method costs a
    switch of threads. Here a thread that finds the lock taken lets the other threads run, and tries again.

    The owner has removed the `token`. Putting it back frees the lock:

        lock.acquire()
        try: …
        finally: lock.token[0] = True

    Python delivers an interrupt at the start of a function, after a call of a built-in function, and at the start of
    each round of a loop. So no interrupt comes between removing the token and the `try`, or between the end of the
    `try` and putting the token back. `with` would call a function at its end, and an interrupt there would leave the
    lock taken. The methods of inner loops inline `acquire`:

        for held in lock.attempts:
            if held: break
            lock.wait()
        try: …
        finally: lock.token[0] = True
    """

    __slots__ = ("attempts", "token", "waits")

    def __init__(self) -> None:
        #: Empty while a thread owns the lock.
        self.token: Final = {0: True}
        #: An endless iterator: each step tries to acquire the lock, and is True if that succeeded.
        self.attempts: Iterator[bool] = map(self.token.pop, repeat(0), repeat(False))
        #: Failed attempts since the last call of `let_in`.
        self.waits = 0

    def acquire(self) -> None:
        """Acquire the lock as soon as it is free, and first let waiting threads run."""
        if self.waits:
            self.let_in()
        for held in self.attempts:
            if held:
                return
            self.wait()

    def wait(self) -> None:
        """Let other threads run after a failed attempt."""
        self.waits = waits = self.waits + 1
        sleep(0 if waits < _FAST_ATTEMPTS else _SLEEP)

    def let_in(self) -> None:
        """Let waiting threads run. A thread that often needs the lock calls this before it acquires it again."""
        self.waits = 0
        sleep(0)

    def locked(self) -> bool:
        """Return True while a thread owns the lock."""
        return not self.token
