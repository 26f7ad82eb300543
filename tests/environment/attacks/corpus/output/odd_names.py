# A value whose name, type and text are half characters and zeros.
# outcome: ok error
Odd = type(
    "\u0000".join(["Od", "d"]).replace("\0", "_"),
    (),
    {"__repr__": lambda self: "\udcff\0\x1b[31m\ud800"},
)
[Odd(), "\udc80", b"\xff\0"]
