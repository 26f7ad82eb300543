"""Which sandbox call runs when, and in what: queue, sessions, ids, deadlines. `scheduler.py` is the
way in.
"""
