"""Helpers without a subject of their own: files, strict JSON, HTTP, intervals, plots, markup."""
