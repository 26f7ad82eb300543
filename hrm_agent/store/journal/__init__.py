"""Journal in the store's database: model calls, tool calls, trajectories, overlays and scorings."""
