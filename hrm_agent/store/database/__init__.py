"""Databases under a store: SQLite and PostgreSQL, cursors, writes that are committed together."""
