"""Updates of the policy: batches, advantages, log-probs, objectives, optimisers, adapters."""
