"""Chat models that a user brings: recorded as they answer, and a policy in their place."""
