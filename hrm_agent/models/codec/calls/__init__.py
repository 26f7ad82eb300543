"""Forms of tool calls by model family, with one reader each."""
