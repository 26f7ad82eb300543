"""Selection of rollouts: resample on correct, penalties, verdicts."""
