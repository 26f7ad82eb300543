# Values that JSON has no word for: not a number, infinite, huge, half a character, keys that are the same.
# outcome: ok
[
    float("nan"),
    float("inf"),
    -0.0,
    10**4000,
    1e308 * 10,
    "\ud800",
    "\0",
    {1: 2, "1": 3, None: 4, 1.5: 5},
]
