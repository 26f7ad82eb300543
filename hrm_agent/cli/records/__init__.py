"""Commands that show, check and move what is on record."""
