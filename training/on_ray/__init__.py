"""Rollout workers that are actors of a Ray cluster: `cluster.py` is the way in."""
