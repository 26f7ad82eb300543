"""Import of inspect_ai logs."""
