"""Third-party agents, recorded, replayed and trained: `python -m benchmarks.anyones_agents`."""
