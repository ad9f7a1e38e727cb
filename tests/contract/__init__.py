"""The contract of every driver on every backend, as a test class for pytest.

Name a driver, and the contract runs with threads and with asyncio. Tests of options that the driver lacks are skipped.

>>> from tubes import Driver
>>> from tests.contract import Contract
>>> class TestLifo(Contract):
...     driver = Driver("lifo", order="-id")

Override `connect` to test another backend: see `Bench`.
"""

from pkgutil import iter_modules

import pytest

# Register them before they are imported, so that a failing assert shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from tests.contract.bench import Bench, lacks, needs  # noqa: E402
from tests.contract.contract import Contract  # noqa: E402
from tests.contract.faces import AioFace, Face, SyncFace  # noqa: E402

__all__ = ["AioFace", "Bench", "Contract", "Face", "SyncFace", "lacks", "needs"]
