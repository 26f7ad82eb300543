"""Interface to the tokenizers of several libraries, and three tokenizers that need no library."""
