"""The API of btfak/later: tasks that are posted to a URL after a delay. docs/howto/from-later.md says what differs.

- `api.py` has the routes; `callbacks.py` posts tasks, by `tubes.push`; `ids.py` makes ids of the ids of tasks.
"""

from tubes.serve.later.api import routes
from tubes.serve.later.callbacks import Callbacks, Delivery

__all__ = ["Callbacks", "Delivery", "routes"]
