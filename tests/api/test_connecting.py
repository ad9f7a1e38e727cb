"""The settings of `connect`: from its arguments, then the URL, then the environment."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

import tubes
from tests.contract.faces import Face
from tubes import InvalidOption


def test_connect_without_url_uses_the_environment(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"memory://{uuid4().hex}"
    monkeypatch.setenv("TUBES_URL", place)
    with face.connect() as queue, tubes.connect(place) as other:
        queue.create_tube("mail")
        assert other.tubes() == ["mail"]
    for nowhere in ("", None):
        if nowhere is None:
            monkeypatch.delenv("TUBES_URL")
        else:
            monkeypatch.setenv("TUBES_URL", nowhere)
        with face.connect() as queue:
            assert queue.tubes() == []
            assert repr(queue).endswith(" memory://>")


def test_environment_url_is_checked_like_any_url(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, message in (
        ("foo", r"TUBES_URL='\*\*\*': must be memory://"),
        ("localhost:6379", r"TUBES_URL='localhost:6379': must be .*; did you mean 'redis://localhost:6379'\?"),
        ("redis//localhost", r"TUBES_URL='redis//localhost': must be .*; did you mean 'redis://localhost'\?"),
        ("ftp://who:hunter@host", r"TUBES_URL='ftp://\*\*\*': must be memory://"),
        ("who:hunter@host", r"TUBES_URL='\*\*\*': must be memory://"),
        ("memory://name?ttl=5", r"TUBES_URL='memory://name\?ttl=\*\*\*': has an unknown setting 'ttl'"),
        ("redis://host?pasword=hunter", r"TUBES_URL='redis://host\?pasword=\*\*\*': has an unknown setting"),
        ("memory://?session_ttl=never", "session_ttl='never': must be a number of seconds"),
    ):
        monkeypatch.setenv("TUBES_URL", value)
        with pytest.raises(InvalidOption, match=f"^{message}") as refused:
            face.connect()
        assert refused.value.__context__ is None


def test_connect_argument_overrides_the_url(face: Face) -> None:
    place = f"memory://{uuid4().hex}"
    with face.connect(f"{place}?codec=raw&session_ttl=5&connect_timeout=1") as queue:
        tube = queue.create_tube("mail")
        assert tube.put(b"\0").data == b"\0"
    with pytest.raises(InvalidOption, match="already uses another codec"):
        face.connect(f"{place}?codec=raw", codec="json")
    with face.connect(f"{place}?session_ttl=never", session_ttl=timedelta(minutes=1)) as queue:
        assert queue.tubes() == ["mail"]


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ("ttl=5", "unknown setting 'ttl': known settings are codec, connect_timeout, namespace, session_ttl"),
        ("prefix=a", "unknown setting 'prefix'"),
        ("codec=pickle", "codec='pickle'"),
        ("session_ttl=", "session_ttl='': must be a number of seconds"),
        ("session_ttl=-1", "session_ttl=-1.0: must be from 0"),
        ("connect_timeout=0", "connect_timeout=0.0: must be more than 0 seconds"),
        ("connect_timeout=inf", "connect_timeout=inf: must be from 0"),
    ],
)
def test_bad_url_settings_are_refused(face: Face, settings: str, rule: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        face.connect(f"memory://?{settings}")
    assert rule in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("bad", [-1, float("nan"), True, "1", 0, timedelta(0), timedelta(seconds=-1)])
def test_connect_timeout_must_be_positive(face: Face, bad: Any) -> None:
    with pytest.raises(InvalidOption, match="connect_timeout="):
        face.connect(connect_timeout=bad)


def test_session_of_a_queue_refuses_connect_options(face: Face) -> None:
    given: dict[str, Any] = {"codec": "json", "clock": tubes.SystemClock(), "session_ttl": 1, "connect_timeout": 1}
    with tubes.connect() as queue:
        for option, value in given.items():
            with pytest.raises(InvalidOption, match=f"{option}=.*must be left out: the queue has its own"):
                face.connect(queue, **{option: value})


def test_a_queue_of_asyncio_is_awaited_or_entered() -> None:
    async def main() -> None:
        queue = await tubes.aio.connect()
        assert await queue is queue
        async with queue as entered:
            assert entered is queue
        assert queue.closed

    asyncio.run(main())
