"""`film` against sampling each run in full."""
