# A result of many small things.
# outcome: ok out_of_memory output_limit
# heavy: yes
RESULT = [{"a": [i, str(i)]} for i in range(200_000)]
