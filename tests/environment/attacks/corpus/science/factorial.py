# A formula that takes for ever.
# outcome: timeout error out_of_memory
# wall: 0.8
import sympy

sympy.factorial(10**9).evalf()
