"""Parts of several formats: rows, lines, archives, messages, runs of others."""
