"""Replay of stored runs from their recorded answers."""
