"""Parts of the trainer against their absence, at equal sampled tokens or steps, over several seeds."""
