"""Evaluations in the form in which they were published, each read from a file of theirs."""
