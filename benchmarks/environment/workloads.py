"""Workloads: snippets with their expected results."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENDLESS", "PLAIN", "SCIENTIFIC", "WORKLOADS", "Answer", "Workload"]

Answer = tuple[str, str] | None
"""Outcome (`ok`, `error` or `timeout`) and stdout (None if the call was lost)."""


@dataclass(frozen=True)
class Workload:
    """Snippet with its expected result. `wrong` and `lost` are counted separately, since a wrong
    answer is worse than none.
    """

    name: str
    code: str
    stdout: str = ""
    status: str = "ok"
    seconds: float = 10.0
    """Wall-clock limit. Ten seconds is the default of both peers."""

    def verdict(self, answer: Answer) -> str:
        if answer is None or (answer[0] == "timeout" != self.status):
            return "lost"
        return "good" if answer == (self.status, self.stdout) else "wrong"


PLAIN = Workload("print", "print(1 + 1)", "2\n")
SCIENTIFIC = Workload("print, numpy and sympy loaded", "print(1 + 1)  # numpy", "2\n")
ENDLESS = Workload("time-out", "while True:\n    pass", status="timeout", seconds=1.0)
WORKLOADS = (
    PLAIN,
    Workload(
        "sympy",
        "import sympy\nx = sympy.symbols('x')\nprint(sympy.solve(x**2 - 5*x + 6, x),"
        " sympy.factor(x**3 - 1))",
        "[2, 3] (x - 1)*(x**2 + x + 1)\n",
    ),
    Workload(
        "numpy",
        "import numpy as np\na = np.arange(16.0).reshape(4, 4) + 4 *"
        " np.eye(4)\nprint(round(np.linalg.det(a)))",
        "896\n",
    ),
    Workload("error", "def f(x):\n    return 1 / x\n\nprint(f(1))\nf(0)", "1.0\n", "error"),
)
"""Workloads that end within their limit. `ENDLESS` does not."""
