"""Commands that serve, and that report what is available."""
