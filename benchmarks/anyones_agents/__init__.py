"""Agents of other people, recorded, replayed and trained: `python -m benchmarks.anyones_agents`."""
