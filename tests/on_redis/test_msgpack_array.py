"""Words packed into one string: functions unpack the same words."""

from __future__ import annotations

import pytest
import redis

from tubes.redis.port.msgpack_array import packed
from tubes.testing import LocalServer


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 4095, 4096, 65535, 65536, 1_000_000])
def test_words_of_any_length_are_unpacked_unchanged(valkey: LocalServer, size: int) -> None:
    words = [bytes(number % 256 for number in range(size)), "ä", 7, b""]
    with redis.Redis.from_url(valkey.url) as client:
        found = client.eval("return cmsgpack.unpack(ARGV[1])", 0, packed(words))
    assert found == [words[0], "ä".encode(), b"7", b""]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_any_number_of_words_is_unpacked_in_order(valkey: LocalServer, count: int) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        found = client.eval("return table.concat(cmsgpack.unpack(ARGV[1]), ',')", 0, packed(range(count)))
    assert found == ",".join(map(str, range(count))).encode()
