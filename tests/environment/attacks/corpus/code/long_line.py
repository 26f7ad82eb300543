# A line of millions of characters that fails.
# outcome: error
# wall: 8
# cpu: 8
exec(compile("x = [" + "1," * 200_000 + "]; 1/0", "<snippet>", "exec"))
