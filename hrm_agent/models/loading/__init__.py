"""Loading a model by its string: weights, adapters, checks of what the model can do."""
