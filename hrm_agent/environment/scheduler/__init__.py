"""Scheduling of sandbox calls: queue, sessions, ids, deadlines. `scheduler.py` is the entry
point.
"""
