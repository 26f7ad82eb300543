"""Evolution of the prompts of a graph: rollouts, feedback by prompt, and the search by gepa."""
