"""Commands that show, check and move records."""
