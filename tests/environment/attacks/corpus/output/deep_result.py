# A result that is nested deeper than any reader can follow.
# outcome: ok error
RESULT = []
for _ in range(100_000):
    RESULT = [RESULT]
