"""Code that runs in a peer's own environment and needs only the peer and the standard library.

Each module runs one peer. It defines those of these functions that the peer supports; all but `work` may be async:

- `start()`: called before the first put.
- `put(payload)`: puts one task.
- `put_many(payloads)`: puts 100 tasks in one batch of the peer.
- `work()`: runs a worker until it is killed; it calls `notes.handle` with the payload of each task.
- `cycles(count)`: for queues inside one process: puts, gets and settles `count` tasks.

It imports its peer by `import_module`, as Any, because types are checked without the peers.
"""
