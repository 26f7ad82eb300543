"""Cost of a rollout by thread, by process and by counted operation."""
