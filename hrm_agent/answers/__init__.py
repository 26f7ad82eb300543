"""Parsing of a model's text (final answer, code, JSON, subgoals of a plan), and equality of two
answers.

The package is a part of the core, not of `graphs/parts`, since answers are also read outside of
graphs: by the selection among runs, the chat server (which must not import agents), the command
line and the evaluation.
"""
