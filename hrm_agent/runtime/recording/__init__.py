"""Recording programs that know nothing of records: `with record("runs/x.db"):` around whatever
invokes graphs.
"""
