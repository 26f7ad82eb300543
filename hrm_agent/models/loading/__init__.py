"""Loading of models by their strings: weights, adapters, and checks of capabilities."""
