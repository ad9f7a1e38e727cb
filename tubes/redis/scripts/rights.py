"""The rights that users of a server need.

How rights are checked: the script `open` asks once for the right to every command that any script may run. If a command
that every session needs is missing, the tube is not opened. Otherwise the session knows the missing ones
(`OptionsVersion.lacks`), and a method whose script needs one of them raises an error without a call.

If a right is revoked later, the server refuses a command in the middle of a script, and the writes before it stay. The
caller then marks the tube (the script `damage`). The next call that processes due tasks finds the mark, and its caller
repairs the tube first.
"""

from __future__ import annotations

import re
from typing import Final

#: The commands of scripts, by their minimum number of arguments, the key first. Redis after 8.6 says that a user may
#: not run a command with fewer.
COMMANDS: Final = {
    name: count
    for count, names in {
        1: "DEL EXISTS HGETALL HKEYS HLEN HRANDFIELD HVALS LLEN LPOP PTTL RPOP SCAN SCARD SMEMBERS SRANDMEMBER TYPE "
        "UNLINK ZCARD ZPOPMIN",
        2: "HDEL HEXISTS HGET HMGET HSCAN HSTRLEN LINDEX LPOS LPUSH PEXPIRE RPUSH SADD SISMEMBER SREM SSCAN ZMSCORE "
        "ZREM ZSCAN ZSCORE",
        3: "HINCRBY HSET LRANGE LREM LSET ZADD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE",
        0: "TIME",
    }.items()
    for name in names.split()
}
#: The commands that scripts of every session may run. PUBLISH is not among them: events are only sent if it is allowed.
EVERYBODY: Final = frozenset(
    {
        *("EXISTS", "HDEL", "HEXISTS", "HGET", "HINCRBY", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "HSET", "LPOP"),
        *("PEXPIRE", "PTTL", "TIME", "UNLINK", "ZADD", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX"),
        *("ZRANGEBYSCORE", "ZREM", "ZSCORE"),
    }
)
#: A script that returns the first missing right that every call needs.
CALLING: Final = (
    "local may = redis.acl_check_cmd or tostring "
    "return not may('EVALSHA', '', 0) and 'EVALSHA' or not may('TIME') and 'TIME'"
)
_COMMAND: Final = re.compile(r"\bp?(?:call|many|all_of)\('([A-Z]+)'")


def commands_in(text: str) -> frozenset[str]:
    """Return all commands that a script may run."""
    return frozenset(_COMMAND.findall(text))


def as_lua() -> dict[str, str]:
    """Return the constants of `open.lua`: the commands of all scripts, and those that every session needs."""
    return {
        "COMMANDS": f"{{ {', '.join(f'{name} = {count}' for name, count in COMMANDS.items())} }}",
        "EVERYBODY": f"{{ {', '.join(f'{name} = true' for name in sorted(EVERYBODY))} }}",
    }
