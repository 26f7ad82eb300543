"""Worker processes that run rollouts, on this machine or on a Ray cluster."""
