"""Models in the user's cache: those fetched by name (`hrm-agent models get`), and those converted
from GGUF files.
"""
