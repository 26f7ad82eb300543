"""Cutting a text into chunks that are exact spans of it."""
