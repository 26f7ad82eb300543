"""Answers with right code in the forms that models and people write, each with a change that makes
it wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ANSWERS", "Answer"]


@dataclass(frozen=True)
class Answer:
    name: str
    text: str
    """The final text of the run."""
    tests: tuple[Any, ...]
    wrong: tuple[str, str]
    """Pairs of texts: the first is replaced by the second, which is wrong."""


def fenced(code: str, info: str = "python", fence: str = "```") -> str:
    return f"Here it is:\n\n{fence}{info}\n{code}\n{fence}\n"


SUM = (
    {"stdin": "3\n1 2\n3 4\n5 6\n", "stdout": "3\n7\n11\n"},
    {"stdin": "1\n-1 1\n", "stdout": "0\n"},
)
"""Tests of a program that reads a number of pairs, then prints the sum of each pair."""
PLUS = ("a + b", "a - b")

READING = {
    "input": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)",
    "readline": "import sys\nfor _ in range(int(sys.stdin.readline())):\n"
    "    a, b = map(int, sys.stdin.readline().split())\n    print(a + b)",
    "readline as input": "import sys\ninput = sys.stdin.readline\nfor _ in range(int(input())):\n"
    "    a, b = map(int, input().split())\n    print(a + b)",
    "readlines": "import sys\nfor line in sys.stdin.readlines()[1:]:\n"
    "    a, b = map(int, line.split())\n    print(a + b)",
    "read": "import sys\nd = list(map(int, sys.stdin.read().split()))\n"
    "for a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    "iteration": "import sys\nnext(sys.stdin)\nfor line in sys.stdin:\n"
    "    a, b = map(int, line.split())\n    print(a + b)",
    "buffer": "import sys\nd = list(map(int, sys.stdin.buffer.read().split()))\n"
    "for a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    "buffer.readline": "import sys\nread = sys.stdin.buffer.readline\nfor _ in range(int(read())):\n"
    "    a, b = map(int, read().split())\n    print(a + b)",
    "open(0)": "d = list(map(int, open(0).read().split()))\nfor a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    "open(0) by line": "_, *rest = open(0)\nfor line in rest:\n    a, b = map(int, line.split())\n    print(a + b)",
    "open(0, 'rb')": "d = [*map(int, open(0, 'rb').read().split())]\n"
    "for a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    **{
        f"open({path!r})": f"_, *rest = open({path!r})\nfor line in rest:\n    a, b = map(int, line.split())\n"
        "    print(a + b)"
        for path in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
    },
    "io.open of a path": "import io\nfrom pathlib import Path\n_, *rest = io.open(Path('/dev/stdin'), 'rb')\n"
    "for line in rest:\n    a, b = map(int, line.split())\n    print(a + b)",
    "Path.read_text": "from pathlib import Path\n_, *rest = Path('/dev/stdin').read_text().splitlines()\n"
    "for line in rest:\n    a, b = map(int, line.split())\n    print(a + b)",
    "os.open": "import os\nd = [*map(int, os.read(os.open('/dev/stdin', os.O_RDONLY), 10**6).split())]\n"
    "for a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    "os.read": "import os\nd = [*map(int, os.read(0, 10**6).split())]\n"
    "for a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    "fileno": "import os, sys\nsize = os.fstat(sys.stdin.fileno()).st_size\n"
    "d = [*map(int, os.read(sys.stdin.fileno(), size).split())]\nfor a, b in zip(d[1::2], d[2::2]):\n    print(a + b)",
    "BytesIO of it": "import io, os, sys\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n"
    "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)",
    "fileinput": "import fileinput\nlines = list(fileinput.input())\nfor line in lines[1:]:\n"
    "    a, b = map(int, line.split())\n    print(a + b)",
    "iter": "import sys\nfor line in list(iter(sys.stdin.readline, ''))[1:]:\n"
    "    a, b = map(int, line.split())\n    print(a + b)",
    "end of file": "input()\ntry:\n    while True:\n        a, b = map(int, input().split())\n        print(a + b)\n"
    "except EOFError:\n    pass",
    "prompts": "n = int(input('How many? '))\nfor i in range(n):\n"
    "    a, b = map(int, input(f'{i}: ').split())\n    print(a + b)",
    "__stdin__": "import sys\nfor line in sys.__stdin__.read().splitlines()[1:]:\n"
    "    a, b = map(int, line.split())\n    print(a + b)",
    "future": "from __future__ import annotations\nimport sys\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    "for line in list(sys.stdin)[1:]:\n    print(add(*map(int, line.split())))",
    "a docstring and future": '"""Adds."""\nfrom __future__ import division\nfor _ in range(int(input())):\n'
    "    a, b = map(int, input().split())\n    print(a + b)",
    "main guard": "def main():\n    for _ in range(int(input())):\n        a, b = map(int, input().split())\n"
    "        print(a + b)\n\nif __name__ == '__main__':\n    main()",
    "sys.exit(main())": "import sys\ndef main():\n    for _ in range(int(input())):\n"
    "        a, b = map(int, input().split())\n        print(a + b)\n    return 0\nif __name__ == '__main__':\n"
    "    sys.exit(main())",
    "exit()": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    print(a + b)\nexit()\nprint('never')",
    "quit(0)": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)\nquit(0)",
    "thread": "import sys, threading\ndef main():\n    for _ in range(int(input())):\n"
    "        a, b = map(int, input().split())\n        print(a + b)\nsys.setrecursionlimit(10**6)\n"
    "threading.stack_size(2**26)\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "thread that nobody joins": "import threading\ndef main():\n    for _ in range(int(input())):\n"
    "        a, b = map(int, input().split())\n        print(a + b)\nthreading.Thread(target=main).start()",
    "sys.stdout.write": "import sys\nfor _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    sys.stdout.write(str(a + b) + '\\n')",
    "stdout.buffer": "import sys\nfor _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    sys.stdout.buffer.write(b'%d\\n' % (a + b))",
    "os.write": "import os\nfor _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    os.write(1, f'{a + b}\\n'.encode())",
    "flush": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b, flush=True)",
    "print of a list": "out = []\nfor _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    out.append(a + b)\nprint(*out, sep='\\n', end='')",
    "StringIO at exit": "import atexit, io, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\n"
    "@atexit.register\ndef write():\n    sys.__stdout__.write(buffer.getvalue())\n"
    "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)",
    "a file of it that is not closed": "out = open(1, 'w')\nfor _ in range(int(input())):\n"
    "    a, b = map(int, input().split())\n    out.write(f'{a + b}\\n')",
    "stdout closed": "import sys\nfor _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    print(a + b)\nsys.stdout.close()",
    "stderr": "import sys\nfor _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    print('debug', a, file=sys.stderr)\n    print(a + b)",
    "names of the harness": "names = prompts = source = fed = out = read = data = sys = os = None\n"
    "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)",
    "a class of types": "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    a: int\n    b: int\n"
    "for _ in range(int(input())):\n    p = Pair(*map(int, input().split()))\n    a, b = p.a, p.b\n    print(a + b)",
    "spaces at the ends": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n"
    "    print(a + b, '')\nprint()",
    "numpy": "import sys\nimport numpy as np\n"
    "d = np.array(sys.stdin.read().split(), dtype=np.int64)[1:].reshape(-1, 2)\n"
    "a, b = d[:, 0], d[:, 1]\nprint('\\n'.join(map(str, a + b)))",
}  # fmt: skip

RETURNED: dict[str, tuple[str, Any, tuple[str, str]]] = {
    "int": ("return 5", 5, ("5", "6")),
    "bool": ("return 1 < 2", True, ("1 < 2", "1")),
    "int, not bool": ("return 1", 1, ("return 1", "return True")),
    "none": ("return None", None, ("None", "False")),
    "text": ("return 'é\\n\\ud83d'", "é\n\ud83d", ("é", "e")),
    "tuple": ("return (1, [2])", [1, [2]], ("2", "3")),
    "float": ("return 0.1 + 0.2", 0.30000000000000004, ("0.2", "0.3")),
    "minus zero": ("return -0.0", 0.0, ("-0.0", "-1.0")),
    "inf": ("return float('inf')", float("inf"), ("'inf'", "'-inf'")),
    "inf in a list": ("return [1.5, float('-inf')]", [1.5, float("-inf")], ("'-inf'", "'inf'")),
    "nan": ("return float('nan')", float("nan"), ("'nan'", "'inf'")),
    "large int": ("return 7**9000", 7**9000, ("7**9000", "7**9000 + 1")),
    "complex": ("return 1 + 2j", 1 + 2j, ("2j", "3j")),
    "bytes": ("return bytearray(b'ab')", b"ab", ("b'ab'", "b'ac'")),
    "set": ("return {3, 1, 2}", {1, 2, 3}, ("3, 1", "1")),
    "empty set": ("return set()", set[int](), ("set()", "{}")),
    "frozenset of tuples": ("return frozenset({(1, 'a')})", {(1, "a")}, ("'a'", "'b'")),
    "keys": ("return {1: 0, 2: 0}.keys()", {1, 2}, ("2: 0", "3: 0")),
    "dict": ("return {1: 'a', 'b': None}", {"1": "a", "b": None}, ("None", "0")),
    "dict of tuples": ("return {(1, 2): 3}", {(1, 2): 3}, ("(1, 2)", "(2, 1)")),
    "Counter": (
        "from collections import Counter\n    return Counter('aab')",
        {"a": 2, "b": 1},
        ("aab", "abb"),
    ),
    "defaultdict": (
        (
            "from collections import defaultdict\n    d = defaultdict(list)\n    d['x'].append(1)\n"
            "    return d"
        ),
        {"x": [1]},
        ("append(1)", "append(2)"),
    ),
    "OrderedDict": (
        "from collections import OrderedDict\n    return OrderedDict(a=1)",
        {"a": 1},
        ("a=1", "a=2"),
    ),
    "ChainMap": (
        "from collections import ChainMap\n    return ChainMap({'a': 1})",
        {"a": 1},
        ("1", "2"),
    ),
    "deque": ("from collections import deque\n    return deque([1, 2])", [1, 2], ("1, 2", "2, 1")),
    "namedtuple": (
        "from collections import namedtuple\n    return namedtuple('P', 'x y')(1, 2)",
        [1, 2],
        ("(1, 2)", "(1, 3)"),
    ),
    "dataclass": (
        "from dataclasses import make_dataclass\n    return make_dataclass('P', ['x', 'y'])(1, 2)",
        {"x": 1, "y": 2},
        ("(1, 2)", "(2, 1)"),
    ),
    "Fraction": (
        "from fractions import Fraction\n    return Fraction(1, 3)",
        1 / 3,
        ("1, 3", "1, 4"),
    ),
    "Decimal": ("from decimal import Decimal\n    return Decimal('0.1')", 0.1, ("0.1", "0.2")),
    "array": (
        "from array import array\n    return array('i', [1, 2])",
        [1, 2],
        ("[1, 2]", "[1, 3]"),
    ),
    "IntEnum": ("from enum import IntEnum\n    return IntEnum('E', 'A B').B", 2, (".B", ".A")),
    "a class of str": ("class S(str): pass\n    return S('x')", "x", ("'x'", "'y'")),
    "a class of list": ("class L(list): pass\n    return L([1])", [1], ("[1]", "[2]")),
    "numpy int": ("import numpy as np\n    return np.int64(5)", 5, ("(5)", "(6)")),
    "numpy bool": ("import numpy as np\n    return np.bool_(True)", True, ("True", "False")),
    "numpy float32": ("import numpy as np\n    return np.float32(0.1)", 0.1, ("0.1", "0.2")),
    "numpy float32 key": (
        "import numpy as np\n    return {np.float32(0.5): 1}",
        {0.5: 1},
        ("0.5", "0.25"),
    ),
    "numpy float32 in a set": (
        "import numpy as np\n    return {np.float32(0.5)}",
        {0.5},
        ("0.5", "0.25"),
    ),
    "numpy float32 of an integer": (
        "import numpy as np\n    return np.float32(9592)",
        9592,
        ("9592", "9593"),
    ),
    "no float32 of a long integer": (
        "import numpy as np\n    return 10**8 + 1",
        10**8 + 1,
        ("10**8 + 1", "np.float32(1e8)"),
    ),
    "no float32 of 0": ("import numpy as np\n    return 1e-60", 1e-60, ("1e-60", "np.float32(0)")),
    "no float16 of a long integer": (
        "import numpy as np\n    return 9593",
        9593,
        ("9593", "np.float16(9592)"),
    ),
    "no float16 of pi": (
        "import numpy as np\n    return 3.14159265",
        3.14159265,
        ("3.14159265", "np.float16(3.14)"),
    ),
    "no float16 of 0": ("import numpy as np\n    return 1e-9", 1e-9, ("1e-9", "np.float16(0)")),
    "numpy float16": ("import numpy as np\n    return np.float16(0.5)", 0.5, ("0.5", "0.25")),
    "range": ("return range(3)", [0, 1, 2], ("3", "4")),
    "many texts": ("return ['x' * 60] * 3000", ["x" * 60] * 3000, ("3000", "3001")),
    "many mappings": (
        "return [dict.fromkeys(['a' * 40, 'b' * 40, 'c' * 40], 1)] * 1000",
        [dict.fromkeys(["a" * 40, "b" * 40, "c" * 40], 1)] * 1000,
        ("1000", "1001"),
    ),
    "numpy float64 in a list": (
        "import numpy as np\n    return [np.float64(0.5)]",
        [0.5],
        ("0.5", "0.6"),
    ),
    "numpy array": (
        "import numpy as np\n    return np.arange(4).reshape(2, 2)",
        [[0, 1], [2, 3]],
        ("2, 2", "4, 1"),
    ),
    "numpy float32 array": (
        "import numpy as np\n    return np.array([0.1, 2], 'f4')",
        [0.1, 2.0],
        ("0.1", "0.3"),
    ),
    "numpy keys": (
        "import numpy as np\n    return {np.int64(1): np.str_('a')}",
        {"1": "a"},
        ("'a'", "'b'"),
    ),
    "long text": ("return 'ab' * 50_000", "ab" * 50_000, ("50_000", "50_001")),
    "long list": ("return list(range(30_000))", list(range(30_000)), ("30_000", "30_001")),
    "prints beside": ("print('ok' * 9000)\n    return 1", 1, ("return 1", "return 2")),
    "recursion": ("g = lambda n: n and 1 + g(n - 1)\n    return g(960)", 960, ("960", "959")),
}

ADD = "def add(a, b):\n    return a + b"
CALLS = ("assert add(2, 3) == 5", {"call": "add([1], [2])", "equals": [1, 2]})
TIMES = ("a + b", "a * b")
WRITTEN = {
    "python": fenced(ADD),
    "Python": fenced(ADD, "Python"),
    "PYTHON": fenced(ADD, "PYTHON"),
    "python3": fenced(ADD, "python3"),
    "py": fenced(ADD, "py"),
    "Python 3": fenced(ADD, "Python 3"),
    "python3.11": fenced(ADD, "python3.11"),
    "{.python}": fenced(ADD, "{.python .numberLines}"),
    "a space before": fenced(ADD, " python"),
    "a title": fenced(ADD, 'python title="add.py"'),
    "a file": fenced(ADD, "python:add.py"),
    "a file alone": fenced(ADD, "add.py"),
    "no word": fenced(ADD, ""),
    "tildes": fenced(ADD, "python", "~~~"),
    "four backticks": fenced(ADD + "\n\nEXAMPLE = '''\n```\nadd(1, 2)\n```\n'''", "python", "````"),
    "no fence": ADD,
    "no end": f"So:\n```python\n{ADD}\n",
    "carriage returns": fenced(ADD).replace("\n", "\r\n"),
    "in a list": (
        "1. The function:\n\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. Done."
    ),
    "deep in a list": (
        "  * So\n\n      ```python\n      def add(a, b):\n          return a + b\n      ```\n"
    ),
    "behind a list's mark": "- ```python\n  def add(a, b):\n      return a + b\n  ```\n",
    "in a quote": "> ```python\n> def add(a, b):\n>     return a + b\n> ```\n",
    "a shell before": f"```bash\npip install nothing\n```\n{fenced(ADD)}",
    "text before": f"```text\n2 + 3 = 5\n```\n{fenced(ADD)}",
    "text within a fence without a word before": f"```\n2 + 3 = 5\n```\n{fenced(ADD)}",
    "output behind": f"{fenced(ADD)}Output:\n```\n5\n```\n",
    "output behind, named": f"{fenced(ADD)}```output\n5\n```\n",
    "a transcript behind": f"{fenced(ADD)}```python\n>>> add(2, 3)\n5\n```\n",
    "a draft before": (
        f"{fenced('def add(a, b):' + chr(10) + '    return 0')}Better:\n{fenced(ADD)}"
    ),
    "cut off behind": f"{fenced(ADD)}And a test:\n```python\nprint(add(",
    "another language behind": (
        f"{fenced(ADD)}In C:\n```c\nint add(int a, int b) {{ return a - b; }}\n```\n"
    ),
    "thought before": f"<think>\n```python\ndef add(a, b): return 0\n```\n</think>\n{fenced(ADD)}",
    "in an answer": f"<answer>\n{fenced(ADD)}</answer>",
    "directly in an answer": f"<answer>```python\n{ADD}\n```</answer>",
    "a main guard that reads": fenced(
        f"{ADD}\n\nif __name__ == '__main__':\n    print(add(int(input()), int(input('b: '))))"
    ),
    "a class of types": fenced(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import"
        f" Any\n@dataclass\nclass Box:\n    a: Any\n{ADD}"
    ),
    "names of builtins": fenced(f"list = dict = repr = type = None\n{ADD}"),
    "names of the harness": fenced(f"data = returned = load = sys = builtins = None\n{ADD}"),
}

ANSWERS = [
    *(Answer(f"reads by {name}", fenced(code), SUM, PLUS) for name, code in READING.items()),
    *(
        Answer(
            f"returns {name}",
            fenced(f"def f():\n    {code}"),
            ({"call": "f()", "equals": wanted},),
            wrong,
        )
        for name, (code, wanted, wrong) in RETURNED.items()
    ),
    *(Answer(f"written: {name}", text, CALLS, TIMES) for name, text in WRITTEN.items()),
    Answer(
        "prompts that the reference has printed",
        fenced("n = int(input('n? '))\nprint(n + 1)"),
        ({"stdin": "1\n", "stdout": "n? 2\n"},),
        ("n + 1", "n + 2"),
    ),
    Answer(
        "many prompts",
        fenced("print(sum(int(input('> ')) for _ in range(1000)))"),
        ({"stdin": "7\n" * 1000, "stdout": "7000"},),
        ("sum", "max"),
    ),
    Answer(
        "a long output",
        fenced("for i in range(20_000):\n    print(i)"),
        ({"stdin": "", "stdout": "\n".join(map(str, range(20_000)))},),
        ("20_000", "19_999"),
    ),
    Answer(
        "a long input",
        fenced("print(sum(map(int, open(0))))"),
        ({"stdin": "7\n" * 100_000, "stdout": "700000"},),
        ("sum", "len"),
    ),
    Answer(
        "calls that build on each other",
        fenced("seen = []\ndef push(x):\n    seen.append(x)\n    return len(seen)"),
        ("assert push(7) == 1", "assert push(7) == 2", "assert push(8) == 3"),
        ("seen.append(x)", "seen[:] = [x]"),
    ),
    Answer(
        "a generator of the tests' own",
        fenced("def primes():\n    yield 2\n    yield 3"),
        ("assert list(primes()) == [2, 3]", "assert next(primes()) == 2"),
        ("yield 3", "yield 4"),
    ),
]
