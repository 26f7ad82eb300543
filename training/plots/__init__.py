"""Curves of trainings as pictures."""
