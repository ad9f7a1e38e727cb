"""Posts the tasks of a tube to a URL, with signatures of Standard Webhooks. Extra `push`; the guide is docs/push.md.

A `Webhook` is a handler of a `Worker`, which provides concurrency, backoff, attempts and dead letters. May import
`tubes.worker` and the packages that it imports.

- `places.py` decides which URLs and addresses are allowed; `sender.py` posts only to those.
- `signing.py` signs requests; `webhook.py` is the handler.

>>> import tubes
>>> from tubes.push import Sender, Webhook
>>> from tubes.worker import Worker
>>> with tubes.connect() as queue:
...     _ = queue.create_tube("orders", "fifottl", max_attempts=8, backoff=tubes.Backoff(5, factor=3, jitter=0.2))
...     sender = Sender(allow=["https://example.com/"])
...     worker = Worker(queue)
...     _ = worker.lifespan(sender.running)
...     _ = worker.on("orders", Webhook("https://example.com/orders", sender=sender), concurrency=10)
"""

from tubes.errors import needs

with needs("tubes.push", "push"):
    from tubes.push.places import Places
    from tubes.push.sender import Reply, Sender, SendFailed
    from tubes.push.signing import Signer
    from tubes.push.webhook import Webhook

__all__ = ["Places", "Reply", "SendFailed", "Sender", "Signer", "Webhook"]
