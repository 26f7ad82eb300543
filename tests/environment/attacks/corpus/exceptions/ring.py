# Exceptions that caused each other, with notes that grow.
# outcome: error output_limit
a, b = ValueError("a"), ValueError("b")
a.__cause__, b.__context__ = b, a
a.__notes__ = ["note " * 1000] * 1000
raise a
