# A formula whose text is larger than memory.
# outcome: timeout error out_of_memory
# wall: 0.7
import sympy

x = sympy.Symbol("x")
formula = x
for _ in range(60):
    formula = sympy.Add(formula, sympy.sin(formula), evaluate=False)
formula
