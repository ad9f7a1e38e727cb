"""The API of btfak/later: tasks that are posted to a URL after a delay. docs/howto/other-apis.md lists the differences.

- `api.py` has the routes; `callbacks.py` posts tasks with `tubes.push`; `ids.py` converts task ids to uuids.
"""

from tubes.serve.later.api import routes
from tubes.serve.later.callbacks import Callbacks, Delivery

__all__ = ["Callbacks", "Delivery", "routes"]
