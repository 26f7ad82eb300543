# Code within a formula.
# outcome: ok error
import sympy

for text in ("__import__('os').system('touch @SCRATCH@/@MARK@')", "open('@SECRET_FILE@').read()"):
    try:
        print(sympy.sympify(text))
    except Exception as error:
        print(type(error).__name__)
