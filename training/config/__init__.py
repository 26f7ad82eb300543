"""Configurations of the training commands, and the defaults that depend on the model."""
