"""Forms in which model families write tool calls, one reader each."""
