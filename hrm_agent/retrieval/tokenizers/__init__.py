"""One small interface over the tokenizers of several libraries, and three that need none."""
