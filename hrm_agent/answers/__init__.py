"""What a model's text says: its final answer, JSON in it, subgoals of a plan, and when two answers are the same."""
