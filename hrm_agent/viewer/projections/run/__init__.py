"""Projections of a run: curves, groups, trajectories, comparisons."""
