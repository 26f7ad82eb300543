# Groups of groups of exceptions.
# outcome: error out_of_memory timeout
# wall: 4
group = ValueError("inner")
for _ in range(400):
    group = ExceptionGroup("g", [group, ValueError("x")])
raise group
