"""The contract that every driver on every backend keeps, as a test class for pytest (extra `conformance`).

Name a driver, and the contract runs, on threads and on asyncio; what the driver lacks is skipped and says so.

>>> from tubes import Driver
>>> from tubes.conformance import Contract
>>> class TestLifo(Contract):
...     driver = Driver("lifo", order="-id")

For a backend of your own override `connect`; `Bench` says how. May import all that users may.
"""

from pkgutil import iter_modules

from tubes.errors import needs as needs_extra

with needs_extra("tubes.conformance", "conformance"):
    import pytest

# Before they are imported: then a failing assert shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from tubes.conformance.bench import Bench, lacks, needs  # noqa: E402
from tubes.conformance.contract import Contract  # noqa: E402
from tubes.conformance.faces import AioFace, Face, SyncFace  # noqa: E402

__all__ = ["AioFace", "Bench", "Contract", "Face", "SyncFace", "lacks", "needs"]
