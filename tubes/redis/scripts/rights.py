"""Which rights users of a server need: what is missing is said at once, not half way through a verb."""

from __future__ import annotations

from typing import Final

#: The commands that the scripts of every session may run: who opens a tube is asked for all of them. Events are told
#: where PUBLISH is allowed.
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
#: Answers what of that which every call needs is missing.
CALLING: Final = (
    "local may = redis.acl_check_cmd or tostring "
    "return not may('EVALSHA', '', 0) and 'EVALSHA' or not may('TIME') and 'TIME'"
)
