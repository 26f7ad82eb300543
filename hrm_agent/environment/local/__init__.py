"""Execution of Python in processes of this machine."""
