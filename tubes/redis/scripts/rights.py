"""The rights that users of a server need. Missing rights are reported on opening, not in the middle of a script."""

from __future__ import annotations

from typing import Final

#: The commands that scripts of every session may run. Opening a tube checks all of them. PUBLISH is not among them:
#: events are only sent if it is allowed.
EVERYBODY: Final = (
    *("EXISTS", "HDEL", "HEXISTS", "HGET", "HINCRBY", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "HSET", "LPOP"),
    *(
        "PEXPIRE",
        "PTTL",
        "TIME",
        "ZADD",
        "ZCARD",
        "ZCOUNT",
        "ZMSCORE",
        "ZRANGE",
        "ZRANGEBYLEX",
        "ZRANGEBYSCORE",
        "ZREM",
        "ZSCORE",
    ),
    "UNLINK",
)
#: A script that returns the first missing right that every call needs.
CALLING: Final = (
    "local may = redis.acl_check_cmd or tostring "
    "return not may('EVALSHA', '', 0) and 'EVALSHA' or not may('TIME') and 'TIME'"
)
