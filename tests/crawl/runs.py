"""Spiders that run as separate processes."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from tests.support.processes import python


class Run:
    """A process that crawls, and then prints statistics."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self._log: Final = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        self.process: Final = python("-m", module, *arguments, env=env or {}, **pipes)

    def wait(self, timeout: float = 120) -> dict[str, Any]:
        """Wait for the end of the process, and return the statistics."""
        out, _ = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, self.log()
        stats: dict[str, Any] = json.loads(out)
        return stats

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds while the process runs."""
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def interrupt(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


def spider(name: str, url: str, starts: list[str], *, env: Mapping[str, str] | None = None, **settings: Any) -> Run:
    """Run a spider of `tests.crawl.spiders`."""
    all_settings = {"TUBES_URL": url, "TUBES_INTERVAL": 0.2, **settings}
    return Run("tests.crawl.spiders", name, json.dumps({"settings": all_settings, "starts": starts}), env=env)
