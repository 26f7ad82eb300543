"""Environment as a server, and its client: `server.py`, `client.py`."""
