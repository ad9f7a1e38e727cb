"""The address and credentials of a server.

Each process that connects reads passwords and files itself, so that they never become part of a Spark plan.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

from tubes.backend.url import read
from tubes.errors import InvalidOption
from tubes.redis.bulk import check_settings

#: Field of `Address` -> name of the option, as users write it.
OPTIONS: Final = {
    "url": "url", "username": "username", "password": "password", "password_env": "passwordEnv",
    "password_file": "passwordFile", "tls_ca_file": "tlsCaFile", "tls_cert_file": "tlsCertFile",
    "tls_key_file": "tlsKeyFile",
}  # fmt: skip
_PASSWORDS: Final = ("password", "password_env", "password_file")
#: Field with a TLS file -> the URL setting that names the same file.
_TLS: Final = {"tls_ca_file": "ssl_ca_certs", "tls_cert_file": "ssl_certfile", "tls_key_file": "ssl_keyfile"}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Printed in place of a password, and of a file or variable name that may be a password by mistake.
_HIDDEN: Final = "***"
_EVERYWHERE: Final = "it is read by the driver and by all executors"


@dataclass(frozen=True)
class Address:
    """A URL and the options that complete it. Its repr omits secrets."""

    url: str = field(repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    password_file: str | None = field(default=None, repr=False)
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidOption` if options contradict each other. The error contains no password."""
        place = read(self.url)
        passwords = [name for name in _PASSWORDS if getattr(self, name) is not None]
        if len(passwords) > 1:
            rule = "is given twice: give one of password, passwordEnv and passwordFile"
            raise InvalidOption(option=OPTIONS[passwords[1]], value=self._redact(passwords[1]), rule=rule)
        login = [name for name in ("username", *passwords) if getattr(self, name) is not None]
        if login and ("@" in place.redacted or place.settings.keys() & {"username", "password"}):
            rule = f"already contains a user or a password: remove them, or the option {OPTIONS[login[0]]}"
            raise InvalidOption(option="url", value=place.redacted, rule=rule)
        if self.password_env is not None and not _VARIABLE.fullmatch(self.password_env):
            # Omit the value: it may be the password itself.
            rule = "must be the name of an environment variable: letters, digits and _"
            raise InvalidOption(option="passwordEnv", value=_HIDDEN, rule=rule)
        for name, setting in _TLS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if place.scheme != "rediss":
                raise InvalidOption(option=OPTIONS[name], value=value, rule="needs a url that begins with rediss://")
            if setting in place.settings:
                rule = f"is given twice: the url also contains {setting}"
                raise InvalidOption(option=OPTIONS[name], value=value, rule=rule)
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise InvalidOption(option="tlsKeyFile", value=self.tls_key_file, rule="needs tlsCertFile")

    def check_stored(self) -> None:
        """Raise `InvalidOption` if storing this address in a catalog would store a password."""
        place = read(self.url)
        rule = "would be stored in Spark's catalog in clear text: use passwordEnv or passwordFile"
        if self.password is not None:
            raise InvalidOption(option="password", value=_HIDDEN, rule=rule)
        if "@" in place.redacted or place.settings.keys() & {"username", "password", "ssl_password"}:
            raise InvalidOption(option="url", value=place.redacted, rule=f"contains a user or a password, which {rule}")
        check_settings(place)  # Storing makes no connection that checks this, and a misspelled `passWord` is a secret.

    def _redact(self, name: str) -> object:
        return getattr(self, name) if name == "password_env" else _HIDDEN

    def locate(self) -> str:
        """Return the complete URL for this machine. Raises `InvalidOption` if a variable or a file is missing."""
        files = {setting: path for name, setting in _TLS.items() if (path := getattr(self, name)) is not None}
        for name in _TLS:
            if getattr(self, name) is not None:
                _read_file(OPTIONS[name], getattr(self, name))
        url = self.url
        password = self._find_password()
        if self.username is not None or password is not None:
            scheme, slashes, path = url.partition("://")
            login = quote(self.username or "", safe="") + ("" if password is None else f":{quote(password, safe='')}")
            url = f"{scheme}{slashes}{login}@{path}"
        return url + (("&" if "?" in url else "?") + urlencode(files) if files else "")

    def _find_password(self) -> str | None:
        if self.password_env is not None:
            password = os.environ.get(self.password_env)
            if not password:
                rule = f"is not set, or empty, in the environment of this process: {_EVERYWHERE}"
                raise InvalidOption(option="passwordEnv", value=self.password_env, rule=rule)
            return password
        if self.password_file is not None:
            password = _read_file("passwordFile", self.password_file).decode(errors="replace").rstrip("\r\n")
            if not password:
                raise InvalidOption(option="passwordFile", value=_HIDDEN, rule="is empty")
            return password
        return self.password


def _read_file(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        rule = f"cannot be read on this machine: {getattr(error, 'strerror', error)}; {_EVERYWHERE}"
    raise InvalidOption(option=option, value=_HIDDEN if option == "passwordFile" else path, rule=rule)
