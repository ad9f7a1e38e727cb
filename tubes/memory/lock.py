"""The way into a store: one thread at a time, and nobody sleeps before the door."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from time import sleep
from typing import Any, Final

# After so many tries somebody is inside for long: from then on the others look again after so many seconds.
_TRIES: Final = 1000
_NAP: Final = 0.0005


class Lock:
    """Keeps other threads out of a critical section, without ever blocking on a lock of the operating system.

    A thread that loses the interpreter inside would let each of the others block on such a lock. Each of them would
    later get the lock without the interpreter, so that the next one blocks: from then on every method costs a switch
    of threads. Here a thread that finds the lock taken lets the others run, and tries again.

    Whoever is inside has taken the `token`; `lock.token[0] = True` puts it back, and frees the lock. In between:

        lock.acquire()
        try: …
        finally: lock.token[0] = True

    Interrupts come where a function begins, after a call of a built-in function, and where a loop begins anew. So none
    comes between the token and the `try`, nor between the end of it and the token. `with` would call a function at its
    end, and so an interrupt could leave the lock taken. Methods of inner loops are written out:

        for held in lock.tries:
            if held: break
            lock.wait()
    """

    __slots__ = ("token", "tries", "wanted")

    def __init__(self) -> None:
        #: Empty while somebody is inside.
        self.token: Final = {0: True}
        #: Its next item is whether the lock was free, and is acquired now. It has no end.
        self.tries: Iterator[Any] = map(self.token.pop, repeat(0), repeat(False))
        #: How often others have tried in vain since somebody has let them in.
        self.wanted = 0

    def acquire(self) -> None:
        """Enter, as soon as nobody is inside."""
        for held in self.tries:
            if held:
                return
            self.wait()

    def wait(self) -> None:
        """Let other threads run: somebody is inside."""
        self.wanted = tries = self.wanted + 1
        sleep(0 if tries < _TRIES else _NAP)

    def let_in(self) -> None:
        """Let those run who wait outside. For whoever has just left."""
        self.wanted = 0
        sleep(0)

    def locked(self) -> bool:
        """Whether somebody is inside."""
        return not self.token
