"""What the run has told this process, by its environment: workers that start processes of their own pass it on."""

import os

#: The server's address on loopback.
HOST = os.environ.get("PEERS_HOST", "")
PORT = int(os.environ.get("PEERS_PORT", "0"))
#: The same for what speaks to a Redis.
URL = f"redis://{HOST}:{PORT}/0"
#: Which of a peer's ways is measured, where it has several.
WAY = os.environ.get("PEERS_WAY", "")
