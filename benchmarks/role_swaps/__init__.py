"""Swaps of single roles against faults of known size, and against trainings."""
