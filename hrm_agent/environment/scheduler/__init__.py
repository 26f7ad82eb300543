"""Between callers and the processes that snippets run in: queue, sessions, ids, deadlines. `front.py` is the way in."""
