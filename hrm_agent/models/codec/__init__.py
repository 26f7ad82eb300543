"""Codecs between messages and tokens."""
