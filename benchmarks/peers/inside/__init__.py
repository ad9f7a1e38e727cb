"""What runs in a peer's own environment: needs nothing but the peer and the standard library.

A module here stands for a peer. Of these names it has what the peer can do; all but `work` may be async:

- `start()`: before the first put.
- `put(payload)`: one task.
- `put_many(payloads)`: 100 tasks in the peer's own batch.
- `work()`: a worker, for ever, which calls `notes.handle` with each task's payload.
- `cycles(count)`: for queues inside one process: put, get and settle, so many times over.

It imports its peer by `import_module`, as Any: types are checked where no peer is installed.
"""
