# Code that exhausts the compiler's stack.
# outcome: error out_of_memory timeout ok
# wall: 8
# cpu: 8
# heavy: yes
compile("+".join(["1"] * 200_000), "x", "exec")
exec("x = " + "-" * 200_000 + "1")
