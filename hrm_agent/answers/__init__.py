"""What a model's text says: its final answer, JSON in it, subgoals of a plan, and when two answers
are the same.

A package of the core and no part of `graphs/parts`, since not graphs alone read answers: the choice
among runs and the chat server, which may import no agent, the command line and the evaluation do.
"""
