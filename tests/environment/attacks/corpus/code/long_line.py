# A line of millions of characters that fails.
# outcome: error
# heavy: yes
exec(compile("x = [" + "1," * 200_000 + "]; 1/0", "<snippet>", "exec"))
