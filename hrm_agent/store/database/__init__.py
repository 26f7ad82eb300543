"""Databases of a store: SQLite and PostgreSQL, their cursors, and writes that are committed
together.
"""
