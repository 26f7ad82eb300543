"""Models in the user's cache: models downloaded by name (`hrm-agent models get`), and models
converted from GGUF files.
"""
