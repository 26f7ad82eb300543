"""Logs of inspect_ai, read."""
