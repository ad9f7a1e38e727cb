"""One server in one process (`store.py`), and the sessions of its connections in tubes (`session.py`)."""
