"""Commands that collect, evaluate and train."""
