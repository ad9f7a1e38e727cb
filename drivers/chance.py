"""Reproducible random numbers, equal on every backend."""

from __future__ import annotations

from typing import Final

_MODULUS: Final = 2**31 - 1


def random_of(seed: int, id: int, attempts: int) -> float:
    """Return a pseudo-random number from 0 up to 1 for an attempt at a task.

    Lehmer's generator with the multipliers of Park and Miller. Every product is below 2**53, so Lua, whose numbers are
    doubles, gets the same results (`drivers/lua/chance.lua`).

    >>> random_of(0, 1, 1) == random_of(0, 1, 1) != random_of(0, 1, 2)
    True
    """
    state = (seed % _MODULUS * 16807 + id % _MODULUS + 1) % _MODULUS
    state = (state * 48271 + attempts * 69621 + 1) % _MODULUS
    state = state * 16807 % _MODULUS * 16807 % _MODULUS
    return state / _MODULUS


def apply_jitter(span: int, fraction: float, seed: int, id: int, attempts: int) -> int:
    """Return a span of microseconds, longer by up to this fraction, or shorter if the fraction is negative."""
    if not fraction:
        return span
    return int(span * (1.0 + fraction * random_of(seed, id, attempts)) + 0.5)
