"""Parsing of a model's text: its final answer, JSON in it, subgoals of a plan, and equality of two
answers.

This is a package of the core, not part of `graphs/parts`, since answers are read outside graphs
too: by the selection among runs, the chat server (which may import no agent), the command line and
the evaluation.
"""
