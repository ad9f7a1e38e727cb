"""HTTP services in separate processes."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import httpx
import redis

from tests.contract.bench import eventually
from tests.support.processes import ROOT, python
from tubes.testing import LocalServer


class Served:
    """A running `tubes serve` on a free port."""

    def __init__(
        self, *options: object, cwd: Path | None = None, env: dict[str, str] | None = None, verify: str | None = None
    ) -> None:
        # The process appends to this file, independent of the read position.
        self.log: Final = tempfile.TemporaryFile("a+")  # noqa: SIM115
        #: The arguments of its command.
        self.options: Final = options
        words = ("-m", "tubes", "serve", "--http", "127.0.0.1:0", *options)
        pipes: dict[str, Any] = {"stdout": self.log, "stderr": subprocess.PIPE, "text": True}
        self.process: Final = python(*words, cwd=cwd or ROOT, env=env or {}, **pipes)
        self.stderr_lines: Final[list[str]] = []
        self.url = ""
        self.admin_url = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr_lines.append(line)
            urls = re.findall(r"https?://\S+:\d+", line)
            if urls:
                self.url, self.admin_url = urls[0], urls[-1]
                break
        assert self.url, "".join(self.stderr_lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        context = ssl.create_default_context(cafile=verify)
        self.client: Final = httpx.Client(base_url=self.url, timeout=30, verify=context)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.stderr_lines.extend(self.process.stderr)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines of the access log so far, which are written with a short delay."""
        marker = f"/marked/{uuid4().hex}"
        reply = self.client.get(marker)
        assert reply.status_code == 404

        def read() -> list[dict[str, Any]]:
            # The process shares the file position and may move it between a seek and a read.
            text = os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode()
            return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

        assert eventually(lambda: marker in {line["path"] for line in read()})
        return [line for line in read() if line["path"] != marker]

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(kind)
        code = self.process.wait(30)
        self._reader.join(5)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stop()
        self.log.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        assert "Traceback" not in "".join(self.stderr_lines), "".join(self.stderr_lines)


def add_stray_key(server: LocalServer, namespace: str) -> None:
    """Damage the tube `mail` of a namespace: one of its unique keys refers to no task."""
    with redis.Redis.from_url(server.url) as client:
        [tasks] = client.scan_iter(f"*{namespace}*mail*:tasks")
        client.hset(tasks.replace(b":tasks", b":keys"), "nobody", "99")
