"""Settings of this process in environment variables, which child processes of a worker inherit."""

import os

#: The server's address on loopback.
HOST = os.environ.get("PEERS_HOST", "")
PORT = int(os.environ.get("PEERS_PORT", "0"))
#: The same address as a URL of Redis.
URL = f"redis://{HOST}:{PORT}/0"
#: Which of a peer's ways is measured, where it has several.
WAY = os.environ.get("PEERS_WAY", "")
#: The lease in seconds where reliability is measured: then each peer has the settings that its guide advises for this.
LEASE = int(os.environ.get("PEERS_LEASE", "0"))
