"""`reward-diff` against trainings with the two rewards that it compares."""
