"""Commands that run, resume and fork."""
