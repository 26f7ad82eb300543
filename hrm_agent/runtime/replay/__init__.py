"""Stored runs played again from their recorded answers."""
