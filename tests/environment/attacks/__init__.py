"""What hostile code tries, as files, and what runs them:
`python -m tests.environment.attacks [FOLDER]`.

`corpus/FAMILY/NAME.py` is one attack. It is plain Python; the comments at its head say what it
tries, and what counts as contained (`snippets` has the words). Whatever an attack finds open it
says itself, by printing `BREACH`. `trial` runs one against an environment; `host` lays out what
there is to be reached, and looks afterwards whether anything was.
"""
