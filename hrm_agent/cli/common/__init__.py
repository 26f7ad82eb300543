"""Code shared by commands."""
