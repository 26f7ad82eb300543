"""Recording of programs without changes to their graphs: `with record("runs/x.db"):` around any
code that invokes graphs.
"""
