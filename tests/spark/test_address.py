"""Passwords and TLS files in options: they are read on connect, and never appear in a repr or an error."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import tubes
from tests.faults.test_tls import CERTIFICATE, TlsProxy
from tubes import ConnectionLost, InvalidOption, ServerRefused
from tubes.spark.settings import read_settings
from tubes.testing import LocalServer

from .objects import copy_by_pickle, read, source, write

#: A password with characters that a URL must escape.
PASSWORD = "sword/fish@4711?#%:"


@pytest.fixture
def ann(valkey: LocalServer) -> Iterator[str]:
    """A user of the server with this password."""
    with valkey.client() as client:
        client.acl_setuser(
            "ann", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], channels=["*"], commands=["+@all"]
        )
        yield "ann"
        client.acl_deluser("ann")


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Option -> its value, for each option that can provide the password."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("TUBES_TEST_PASSWORD", PASSWORD)
    return {
        "password": PASSWORD, "passwordEnv": "TUBES_TEST_PASSWORD", "passwordFile": str(tmp_path / "password")
    }  # fmt: skip


@pytest.mark.parametrize("option", ["password", "passwordEnv", "passwordFile"])
def test_password_is_read_from_option_variable_or_file(
    queue: tubes.Queue, options: dict[str, str], valkey: LocalServer, ann: str, secrets: dict[str, str], option: str
) -> None:
    queue.create_tube("t")
    overrides = {**options, "username": ann, option: secrets[option]}
    write(overrides, [[{"data": "one"}]], "data string")
    assert [row["data"] for row in read(overrides, "data string")] == ["one"]
    with valkey.client() as client:
        client.acl_setuser("ann", reset_passwords=True, passwords=["+other"])
        client.client_kill_filter(user="ann")  # An open connection would not need the password again.
    with pytest.raises((ConnectionLost, ServerRefused), match="invalid username-password pair") as refused:
        read(overrides, "data string")
    assert "4711" not in str(refused.value)


def test_tls_files_are_set_by_options(queue: tubes.Queue, url: str, valkey: LocalServer) -> None:
    queue.create_tube("t").put("one")
    with TlsProxy(valkey) as proxy:
        place = f"rediss://127.0.0.1:{proxy.port}?{url.partition('?')[2]}"
        overrides = {"url": place, "tube": "t", "tlsCaFile": str(CERTIFICATE)}
        keyed = {**overrides, "tlsCertFile": str(CERTIFICATE), "tlsKeyFile": str(CERTIFICATE)}
        for options in (overrides, keyed):
            assert [row["data"] for row in read(options, "data string")] == ["one"]


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"password": PASSWORD, "passwordEnv": "P"}, "^passwordEnv='P': is given twice: give one of password, "),
        ({"passwordEnv": "P", "passwordFile": "/p"}, r"^passwordFile='\*\*\*': is given twice"),
        (
            {"url": "redis://ann:4711@h", "password": "x"},
            r"^url='redis://\*\*\*@h': already contains a user or a password",
        ),
        ({"url": "redis://h?password=4711", "passwordFile": "/p"}, "remove them, or the option passwordFile$"),
        ({"url": "redis://:4711@h", "username": "ann"}, "or the option username$"),
        ({"passwordEnv": PASSWORD}, r"^passwordEnv='\*\*\*': must be the name of an environment variable"),
        ({"password": ""}, "^password='': must not be empty"),
        ({"tlsCaFile": "/ca"}, "^tlsCaFile='/ca': needs a url that begins with rediss://"),
        (
            {"url": "rediss://h?ssl_ca_certs=/x", "tlsCaFile": "/ca"},
            "^tlsCaFile='/ca': is given twice: the url also contains ssl_ca",
        ),
        ({"url": "rediss://h", "tlsKeyFile": "/key"}, "^tlsKeyFile='/key': needs tlsCertFile"),
    ],
)
def test_conflicting_address_options_are_refused(overrides: dict[str, str], rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule) as refused:
        read_settings({"url": "redis://h", "tube": "t", **overrides})
    assert "4711" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (
            {"passwordEnv": "TUBES_NOT_SET"},
            "^passwordEnv='TUBES_NOT_SET': is not set, or empty, in the environment of th",
        ),
        (
            {"passwordFile": "{path}/none"},
            r"^passwordFile='\*\*\*': cannot be read on this machine: No such file or directory",
        ),
        ({"passwordFile": "{path}"}, r"^passwordFile='\*\*\*': cannot be read on this machine: Is a directory"),
        ({"passwordFile": "{path}/empty"}, r"^passwordFile='\*\*\*': is empty$"),
        ({"tlsCaFile": "{path}/none"}, "^tlsCaFile=.*: cannot be read on this machine"),
    ],
)
def test_missing_file_or_variable_is_reported_on_connect(overrides: dict[str, str], rule: str, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    overrides = {name: value.format(path=tmp_path) for name, value in overrides.items()}
    # The driver checks the options, and each process reads the file or variable when it connects.
    settings = copy_by_pickle(read_settings({"url": "rediss://h", "tube": "t", **overrides}))
    with pytest.raises(InvalidOption, match=rule):
        settings.connect()


def test_repr_hides_password_and_pickle_omits_resolved_secret(secrets: dict[str, str]) -> None:
    for name, value in secrets.items():
        overrides = {"url": "redis://h", "tube": "t", name: value}
        settings = read_settings(overrides)
        assert "4711" not in repr(settings) + repr(source(overrides))
        assert (PASSWORD.encode() in pickle.dumps(settings)) == (name == "password")
    assert "4711" not in repr(read_settings({"url": "redis://:4711@h", "tube": "t"}))
