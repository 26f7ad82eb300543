"""Parts shared by formats: rows, lines, archives, messages, runs of other programs."""
