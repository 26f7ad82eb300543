# An exception that was caused by ten thousand others.
# outcome: error output_limit
# heavy: yes
error = None
for number in range(10_000):
    new = ValueError(number)
    new.__cause__ = error
    error = new
raise error
