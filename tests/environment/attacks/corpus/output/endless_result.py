# A result that holds itself, as a list and as a mapping.
# outcome: ok error
RESULT = [1]
RESULT.append({"again": RESULT})
RESULT
