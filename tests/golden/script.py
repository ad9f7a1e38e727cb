"""Short names for the steps of a trace, to write one by hand."""

from __future__ import annotations

from typing import Any

from .traces import Trace

Step = dict[str, Any]


def script(driver: str, *steps: Step, lease: float = 0, **create: Any) -> Trace:
    """Return a trace of these steps."""
    return Trace(
        name=driver,
        driver=driver,
        create=create,
        steps=list(steps),
        final={},
        quirks=frozenset(),
        lease=lease,
        records_events=any(step["op"] == "events" for step in steps),
    )


def _task(id: int | None, state: str, data: Any) -> Any:
    return None if id is None else {"id": id, "state": state, "data": f"t{id}" if data is None else data}


def _step(op: str, session: str, result: Any, **args: Any) -> Step:
    return {"op": op, "session": session, "args": args, "result": result}


def put(session: str, id: int | None, state: str = "r", *, data: Any = None, tube: str = "@self", **opts: Any) -> Step:
    """A put returns this id and state; the default data is `t` and the id."""
    data = f"t{id}" if data is None else data
    return _step("put", session, _task(id, state, data), data=data, opts=opts) | {"tube": tube}


def take(session: str, id: int | None, *, data: Any = None, tube: str = "@self") -> Step:
    """A take without waiting returns this task or None."""
    return _step("take", session, _task(id, "t", data), timeout=0) | {"tube": tube}


def ack(session: str, id: int, *, data: Any = None) -> Step:
    return _step("ack", session, _task(id, "-", data), id=id)


def delete(session: str, id: int, *, data: Any = None) -> Step:
    return _step("delete", session, _task(id, "-", data), id=id)


def bury(session: str, id: int) -> Step:
    return _step("bury", session, _task(id, "!", None), id=id)


def release(session: str, id: int, state: str = "r", **opts: Any) -> Step:
    return _step("release", session, _task(id, state, None), id=id, opts=opts)


def touch(session: str, id: int, delta: float) -> Step:
    return _step("touch", session, _task(id, "t", None), id=id, delta=delta)


def kick(session: str, count: int, kicked: int) -> Step:
    return _step("kick", session, kicked, count=count)


def peek(id: int, state: str, *, data: Any = None, tube: str = "@self") -> Step:
    return _step("peek", "watch", _task(id, state, data), id=id) | {"tube": tube}


def gone(id: int) -> Step:
    """The task does not exist."""
    return fails("not_found", "peek", "watch", id=id)


def does(op: str, session: str, result: Any = None, **args: Any) -> Step:
    """Another step returns this result."""
    return _step(op, session, result, **args)


def fails(error: str, op: str, session: str, *, tube: str = "@self", **args: Any) -> Step:
    """A step fails with this error."""
    return {"op": op, "session": session, "args": args, "error": error, "tube": tube}


def sleep(seconds: float) -> Step:
    return {"op": "sleep", "seconds": seconds}


def disconnect(session: str) -> Step:
    return {"op": "disconnect", "session": session}


def takes(session: str, ref: str, timeout: float | None = None) -> Step:
    """A take starts to wait."""
    args = {} if timeout is None else {"timeout": timeout}
    return {"op": "take_begin", "session": session, "ref": ref, "args": args}


def puts(session: str, ref: str, id: int, **opts: Any) -> Step:
    """A put starts to wait."""
    return {"op": "put_begin", "session": session, "ref": ref, "args": {"data": f"t{id}", "opts": opts}}


def waits(*refs: str) -> list[Step]:
    """These calls have not returned."""
    return [{"op": "pending", "ref": ref, "result": True} for ref in refs]


def took(session: str, ref: str, id: int | None, after: float) -> Step:
    """A waiting take returns this task or None, `after` seconds after its start."""
    return {"op": "take_end", "session": session, "ref": ref, "result": _task(id, "t", None), "after": after}


def came_in(session: str, ref: str, id: int | None, after: float) -> Step:
    """A waiting put returns this task or None."""
    return {"op": "put_end", "session": session, "ref": ref, "result": _task(id, "r", None), "after": after}


def events(*changes: tuple[int, str | None, str]) -> Step:
    """Listeners received these events since the last step of this kind: ids, states, names."""
    recorded = [{"task": {"id": id, "state": state}, "event": event} for id, state, event in changes]
    return {"op": "events", "result": recorded}


def counted(*, ready: int = 0, taken: int = 0, buried: int = 0, delayed: int = 0, **calls: int) -> Step:
    """The statistics have these values, and 0 for others."""
    known = ("put", "take", "ack", "release", "touch", "bury", "kick", "delete", "delay", "ttl", "ttr")
    assert not calls.keys() - set(known)
    tasks = {"ready": ready, "taken": taken, "buried": buried, "delayed": delayed}
    tasks |= {"total": sum(tasks.values()), "done": calls.get("ack", 0) + calls.get("delete", 0)}
    return {"op": "statistics", "result": {"tasks": tasks, "calls": dict.fromkeys(known, 0) | calls}}


def saved(session: str, name: str) -> Step:
    """The uuid of the session is saved under this name."""
    return {"op": "identify", "session": session, "save": name, "result": f"${name}"}


def joins(session: str, name: str) -> Step:
    """The session joins the session saved under this name."""
    return does("identify", session, f"${name}", uuid=f"${name}")
