"""Attacks of hostile code, as files, and their runner:
`python -m tests.environment.attacks [FOLDER]`.

`corpus/FAMILY/NAME.py` is one attack. It is plain Python. The comments at its head describe what it
tries, and what counts as contained (`snippets` documents the words). An attack reports whatever it
finds open by printing `BREACH`. `trial` runs one against an environment. `host` lays out the
targets, and checks afterwards whether any was reached.
"""
