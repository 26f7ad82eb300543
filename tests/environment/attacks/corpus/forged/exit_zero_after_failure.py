# Fails, and ends as if it had not: the claim is its own, but there is no value, and the next call is not touched.
# outcome: ok
# never: value=.
import os

try:
    1 / 0
except ZeroDivisionError:
    os._exit(0)
