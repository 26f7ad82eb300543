"""Retraces the values of a session's code without running it."""
