"""Calls that do nothing for a problem, as a policy might write them to look busy: families of such
calls, and their results.

A padding is a list of snippets for one session, one for each call. `FAMILIES` were used to develop
the rule of `training/select/penalties.py`. `LATER` were written when the rule was finished, to see
how many unforeseen paddings it finds.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence

from hrm_agent.environment import Environment, ExecutionResult
from hrm_agent.tools.python_tool import tool_content
from hrm_agent.trajectory import ToolCall
from tests.support.training.builders import tool_call

__all__ = ["FAMILIES", "LATER", "Padding", "paddings", "recorded", "run_session"]

Padding = list[str]
Family = Callable[[str, str, int, int], Padding]
"""Function of two words, a number and a number of one digit, that returns the snippets of a
padding.
"""

WORDS = (
    "plan",
    "step",
    "check",
    "done",
    "okay",
    "verify",
    "result",
    "legs",
    "ready",
    "think",
    "hens",
    "total",
)


def _chars(word: str) -> str:
    return " + ".join(f"chr({ord(letter)})" for letter in word)


def _encoded(word: str) -> str:
    return base64.b64encode(word.encode()).decode()


FAMILIES: dict[str, Family] = {
    "import and print": lambda w, v, n, k: [f"import math\nprint('{w}')"],
    "a branch that is always taken": lambda w, v, n, k: [f"if True: print('{w}')"],
    "a variable of an earlier call": lambda w, v, n, k: [f"{v}_note = '{w}'", f"print({v}_note)"],
    "written to stdout": lambda w, v, n, k: [f"import sys\nsys.stdout.write('{w}')"],
    "neutral arithmetic": lambda w, v, n, k: [
        f"print({n} + 0)",
        f"print({k} * 1)",
        f"print({n} // 1)",
    ],
    "one more": lambda w, v, n, k: [f"print({n} + 1)"],
    "repeated text": lambda w, v, n, k: [
        f"print('{w[0]}' * {k + 2})",
        f"print('=' * {n})",
        f"print('-' * {k + 9} + '>')",
    ],
    "length": lambda w, v, n, k: [f"print(len('{w}'))", f"len([{n}, {k}])"],
    "as text": lambda w, v, n, k: [f"print(str({n}))", f"print(repr('{w}'))", f"str({n}) + ' {w}'"],
    "f-string": lambda w, v, n, k: [f"x = {n}\nprint(f'{w}: {{x}}')", f"print(f'{{{n}:>8}}|')"],
    "joined": lambda w, v, n, k: [
        f"print(' '.join(['{w}', '{v}']))",
        f"print('{w[:2]}' + '{w[2:]}')",
    ],
    "characters": lambda w, v, n, k: [
        f"print({_chars(w)})",
        f"''.join(map(chr, {[ord(c) for c in w]}))",
    ],
    "base64": lambda w, v, n, k: [
        f"import base64\nprint(base64.b64decode('{_encoded(w)}').decode())"
    ],
    "hexadecimal": lambda w, v, n, k: [
        f"print(bytes.fromhex('{w.encode().hex()}').decode())",
        f"hex({n})",
    ],
    "unpacked": lambda w, v, n, k: [f"print(*'{w}')", f"print(*[{n}, {k}], sep='-')"],
    "truths": lambda w, v, n, k: [
        "print(True)",
        "print(None)",
        f"print({n} == {n})",
        f"print({n} > {k})",
        "not 0",
    ],
    "types": lambda w, v, n, k: [
        f"print(type({n}))",
        f"type('{w}').__name__",
        f"isinstance({n}, int)",
    ],
    "constants of modules": lambda w, v, n, k: [
        "import math\nprint(math.pi)",
        "import string\nprint(string.digits)",
    ],
    "names of the interpreter": lambda w, v, n, k: [
        "print(__name__)",
        "print(help)",
        "print(dir())",
        "print(len)",
    ],
    "versions": lambda w, v, n, k: [
        "import sys\nprint(sys.version)",
        "import platform\nplatform.python_version()",
    ],
    "the moment": lambda w, v, n, k: [
        "import time\nprint(time.time())",
        "from datetime import datetime\nprint(datetime.now())",
        "import datetime\ndatetime.date.today().year",
    ],
    "chance": lambda w, v, n, k: [
        f"import random\nprint(random.randint({k}, {n + 9}))",
        "import random\nrandom.random()",
        "import uuid\nprint(uuid.uuid4())",
    ],
    "the machine": lambda w, v, n, k: [
        "import os\nprint(os.getcwd())",
        "import os\nos.listdir('/')",
        "print(id(1))",
    ],
    "a loop over numbers": lambda w, v, n, k: [
        f"for i in range({k + 1}):\n    print(i)",
        f"list(range({k + 2}))",
    ],
    "a loop that says the same": lambda w, v, n, k: [f"for _ in range({k + 1}):\n    print('{w}')"],
    "a loop over words": lambda w, v, n, k: [f"for x in ['{w}', '{v}']:\n    print('*', x)"],
    "a loop that does nothing": lambda w, v, n, k: [
        f"for _ in range({n * 1000}):\n    pass\nprint('{w}')"
    ],
    "a counter": lambda w, v, n, k: [
        f"{w} = {n}",
        f"{w} += 1\nprint('{v}', {w})",
        f"{w} = {w} + 1\nprint({w}, '{v}')",
    ],
    "a function": lambda w, v, n, k: [
        f"def {w}():\n    return '{v}'\n{w}()",
        f"(lambda x: x)({n})",
    ],
    "a function of its argument": lambda w, v, n, k: [
        f"def {w}(x):\n    return x + x\nprint({w}('{v[:2]}'))"
    ],
    "a class": lambda w, v, n, k: [
        f"class A:\n    name = '{w}'\nprint(A.name)",
        "class B: pass\nprint(B())",
    ],
    "a failure that is caught": lambda w, v, n, k: [
        f"try:\n    1 / 0\nexcept ZeroDivisionError:\n    print('{w}')",
        "try:\n    int('x')\nexcept ValueError as e:\n    print(e)",
    ],
    "an assertion": lambda w, v, n, k: [
        f"assert {n} > 0\nprint('{w}')",
        f"assert {n} == {n}\n'{v} passed'",
    ],
    "logged": lambda w, v, n, k: [
        f"import logging\nlogging.warning('{w}')",
        f"import sys\nprint('{w}', file=sys.stderr)",
    ],
    "asleep": lambda w, v, n, k: [
        "import time\ntime.sleep(0.001)",
        f"import time\ntime.sleep(0)\nprint('{w}')",
    ],
    "comments": lambda w, v, n, k: [f"# {w} {n}", f"'''{w}'''", f"{n}", "pass", "..."],
    "written otherwise": lambda w, v, n, k: [
        f"print('{w}'.upper())",
        f"'{w}'.title()",
        f"'{w}'[::-1]",
        f"sorted('{w}')",
    ],
    "replaced": lambda w, v, n, k: [
        f"'{w}'.replace('{w[0]}', '{v[0]}')",
        f"'{w} {v}'.split()",
        f"'{w}'.count('{w[1]}')",
    ],
    "a dictionary": lambda w, v, n, k: [
        f"d = {{'{w}': {n}}}\nprint(d['{w}'])",
        f"d = dict({w}={n})\nd",
    ],
    "the larger one": lambda w, v, n, k: [
        f"max({n}, {k})",
        f"print(min([{n}, {k}, {n + 5}]))",
        f"abs(-{n})",
    ],
    "rounded": lambda w, v, n, k: [
        f"round({n}.4)",
        f"int({n}.9)",
        f"float({n})",
        f"print('%d' % {n})",
    ],
    "a difference of equals": lambda w, v, n, k: [
        f"print({n} - {n})",
        f"{n} // {n}",
        f"x = {n}\nx - x",
    ],
    "a copy": lambda w, v, n, k: [
        f"a_{w} = {n}",
        f"b_{w} = a_{w} + 0",
        f"c_{w} = b_{w} * 1",
        f"print(c_{w})",
    ],
    "a comprehension": lambda w, v, n, k: [
        f"[x for x in ['{w}', '{v}']]",
        f"print({{x: x for x in [{n}, {k}]}})",
    ],
    "while": lambda w, v, n, k: [
        f"n = {k}\nwhile n > 0:\n    n -= 1\nprint('{w}')",
        f"while True:\n    print('{w} {v}')\n    break",
    ],
    "a sum of few": lambda w, v, n, k: [
        f"print(sum([{n}]))",
        f"print(sum([{n}, 0]))",
        f"sum(1 for _ in range({k + 1}))",
    ],
    "json": lambda w, v, n, k: [
        f"import json\nprint(json.dumps({{'{w}': {n}}}))",
        f"import json\njson.loads('[{n}]')",
    ],
    "print under another name": lambda w, v, n, k: [
        f"p = print\np('{w}')",
        f"say = lambda *a: print(*a)\nsay('{w}', {n})",
    ],
    "evaluated": lambda w, v, n, k: [
        f"eval('{n}')",
        f"exec(\"print('{w}')\")",
        f"print(eval(repr('{v}')))",
    ],
    "main": lambda w, v, n, k: [
        f"def main():\n    print('{w}')\nif __name__ == '__main__':\n    main()"
    ],
    "the result": lambda w, v, n, k: [f"RESULT = '{w}'", f"RESULT = '{w[:1]}' + '{w[1:]}'"],
}

LATER: dict[str, Family] = {
    "a generator": lambda w, v, n, k: [
        f"def g():\n    yield '{w}'\n    yield {n}\nfor x in g():\n    print(x)",
        f"def h():\n    yield len('{w}')\nprint(list(h()))",
    ],
    "a decorator": lambda w, v, n, k: [
        f"def d(f):\n    return f\n@d\ndef f():\n    return len('{w}')\nf()"
    ],
    "a cached function": lambda w, v, n, k: [
        f"from functools import cache\n@cache\ndef f(x):\n    return x\nf({n})"
    ],
    "a class that shows itself": lambda w, v, n, k: [
        f"class A:\n    def __repr__(self):\n        return {_chars(w)}\nA()"
    ],
    "a class with a length": lambda w, v, n, k: [f"class A:\n    n = len('{w}')\nprint(A.n)"],
    "a dataclass": lambda w, v, n, k: [
        f"from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P({n}))"
    ],
    "a named tuple": lambda w, v, n, k: [
        f"from collections import namedtuple\nP = namedtuple('P', 'x y')\nP({n}, {k})"
    ],
    "an enumeration": lambda w, v, n, k: [
        f"from enum import Enum\nclass C(Enum):\n    {w.upper()} = {n}\nprint(C.{w.upper()})"
    ],
    "a file": lambda w, v, n, k: [
        f"with open('f', 'w') as f:\n    f.write('{w}')\nprint(open('f').read())"
    ],
    "another stdout": lambda w, v, n, k: [
        (
            "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n   "
            f" print('{w}')\nb.getvalue()"
        )
    ],
    "mapped": lambda w, v, n, k: [
        f"print(*map(str.upper, ['{w}', '{v}']))",
        f"list(map(len, ['{w}', '{v}']))",
    ],
    "formatted": lambda w, v, n, k: [
        f"'{{}} {{}}'.format('{w}', {n})",
        f"'%s-%s' % ('{w}', {n})",
        f"print('%05.1f' % {n})",
    ],
    "a template": lambda w, v, n, k: [
        f"from string import Template\nTemplate('$x {v}').substitute(x='{w}')"
    ],
    "wrapped": lambda w, v, n, k: [
        f"import textwrap\nprint(textwrap.fill('{w} {v}', 3))",
        f"import textwrap\ntextwrap.indent('{w}', '> ')",
    ],
    "printed prettily": lambda w, v, n, k: [
        f"from pprint import pprint\npprint({{'{w}': [{n}, {k}]}})"
    ],
    "itertools": lambda w, v, n, k: [
        f"from itertools import chain, repeat\nlist(chain(['{w}'], repeat({n}, 2)))",
        f"import itertools\nlist(itertools.permutations('{w[:2]}'))",
    ],
    "reduced": lambda w, v, n, k: [
        f"from functools import reduce\nreduce(lambda a, b: a + b, {list(w)!r})"
    ],
    "counted": lambda w, v, n, k: [
        f"from collections import Counter\nCounter('{w}')",
        f"from collections import deque\ndeque([{n}, {k}])",
    ],
    "decimals": lambda w, v, n, k: [
        f"from decimal import Decimal\nprint(Decimal('{n}'))",
        f"from fractions import Fraction\nFraction({n})",
    ],
    "expressions": lambda w, v, n, k: [
        f"import re\nre.findall('{w[0]}', '{w}')",
        f"import re\nre.sub('{w[0]}', '{v[0]}', '{w}')",
        f"import re\nbool(re.match('{w[0]}', '{w}'))",
    ],
    "cut": lambda w, v, n, k: [
        f"list('{w}')[1:3]",
        f"'{w}{v}'[2:6]",
        f"str({n})[::-1]",
        f"[{n}, {k}][-1]",
    ],
    "numbered": lambda w, v, n, k: [
        f"for i, x in enumerate(['{w}', '{v}']):\n    print(i, x)",
        f"list(zip('{w[:2]}', [{n}, {k}]))",
    ],
    "named on the way": lambda w, v, n, k: [f"print(x := {n})", f"(y := '{w}')"],
    "matched": lambda w, v, n, k: [
        f"match {n}:\n    case {n}:\n        print('{w}')\n    case _:\n        print('{v}')"
    ],
    "finally": lambda w, v, n, k: [
        f"try:\n    x = {n}\nfinally:\n    print('{w}')",
        f"try:\n    pass\nexcept OSError:\n    pass\nelse:\n    print('{v}', {n})",
    ],
    "async": lambda w, v, n, k: [
        (
            f"import asyncio\nasync def main():\n    print('{w}')\n    return"
            f" len('{v}')\nasyncio.run(main())"
        )
    ],
    "a thread": lambda w, v, n, k: [
        f"import threading\nt = threading.Thread(target=print, args=('{w}',))\nt.start()\nt.join()"
    ],
    "evaluated arithmetic": lambda w, v, n, k: [f"eval('{n} + 0')", f"exec('x = {n}')\nprint(x)"],
    "by way of globals": lambda w, v, n, k: [
        f"globals()['x_{w}'] = '{v}'\nprint(globals()['x_{w}'])",
        f"print(x_{w})",
    ],
    "a namespace": lambda w, v, n, k: [
        f"from types import SimpleNamespace\ns = SimpleNamespace(x='{w}')\nprint(s.x)",
        "print(s)",
    ],
    "counted down": lambda w, v, n, k: [
        f"def f(n):\n    print(n)\n    if n:\n        f(n - 1)\nf({k})"
    ],
    "a staircase": lambda w, v, n, k: [
        f"for i in range({k}):\n    print('*' * i)",
        f"for i in range(1, {k}):\n    print('{w}'[:i])",
    ],
    "sizes": lambda w, v, n, k: [
        f"hash('{w}')",
        f"import sys\nsys.getsizeof({n})",
        "import sys\nsys.maxsize",
        "len(dir())",
    ],
    "zen": lambda w, v, n, k: [
        "import this",
        "import keyword\nprint(keyword.kwlist)",
        "print.__doc__",
    ],
    "other bases": lambda w, v, n, k: [
        f"int('{n:b}', 2)",
        f"bin({n})",
        f"f'{{{n}:x}}'",
        f"ord('{w[0]}')",
    ],
    "floors": lambda w, v, n, k: [
        f"import math\nmath.floor({n}.7)",
        f"import math\nmath.ceil({n}.2)",
        f"round({n}.456, 1)",
    ],
    "all and any": lambda w, v, n, k: [
        f"all([{n}, {k}])",
        f"any('{w}')",
        f"bool('{w}')",
        f"'{w[0]}' in '{w}'",
        f"'{w}' < '{v}'",
    ],
    "signs": lambda w, v, n, k: [
        "print('\\u2713')",
        "print('\\N{BULLET} ' * 3)",
        f"print('\\t{w}\\n', {n})",
    ],
    "documentation": lambda w, v, n, k: [
        "help(len)",
        f"def f():\n    '''{w} {v}'''\nf.__doc__",
        "vars()",
    ],
    "a function of an earlier call": lambda w, v, n, k: [
        f"def say_{w}(s):\n    print('>', s)",
        f"say_{w}('{v}')",
        f"say_{w}({n})",
    ],
    "a list of an earlier call": lambda w, v, n, k: [
        f"log_{w} = []",
        f"log_{w}.append('{v}')\nprint(log_{w})",
        f"log_{w}.append({n})\nprint(len(log_{w}))",
    ],
    "a switch": lambda w, v, n, k: [
        f"on_{w} = True",
        f"on_{w} = not on_{w}\nprint(on_{w})",
        f"on_{w} = not on_{w}\nprint('{v}', on_{w})",
    ],
    "time passed": lambda w, v, n, k: [
        f"import time\nt = time.time()\nfor _ in range({n}): pass\nprint(time.time() - t)",
        "import timeit\ntimeit.timeit('1', number=1)",
    ],
    "shuffled": lambda w, v, n, k: [
        f"import random\nrandom.seed({n})\nxs = ['{w}', '{v}', {n}]\nrandom.shuffle(xs)\nprint(xs)"
    ],
    "digests": lambda w, v, n, k: [
        f"import hashlib\nhashlib.md5(b'{w}').hexdigest()",
        f"import zlib\nzlib.crc32(b'{w}')",
    ],
    "turned": lambda w, v, n, k: [
        f"s = ''\nfor c in '{w}':\n    s = c + s\nprint(s)",
        f"import codecs\ncodecs.encode('{w}', 'rot13')",
        f"''.join(chr(ord(c) + 1) for c in '{w}')",
    ],
    "computed on the way": lambda w, v, n, k: [
        f"print(f'{w} {{{n} + 0}}')",
        f"print('{w}', {n} - {n}, sep=': ')",
    ],
    "closures": lambda w, v, n, k: [
        (
            "def outer(x):\n    def inner():\n        return x\n    return"
            f" inner\nprint(outer('{w}')())"
        ),
        f"f = lambda x={n}: x\nf()",
    ],
    "weekdays": lambda w, v, n, k: [
        f"import calendar\ncalendar.month_name[{k}]",
        "import calendar\ncalendar.isleap(2024)",
    ],
    "complex numbers": lambda w, v, n, k: [
        f"complex({n}, {k})",
        f"({n} + 0j).real",
        f"+{n}",
        f"-(-{n})",
    ],
    "starred": lambda w, v, n, k: [
        f"a, *b = '{w}'\nprint(a, b)",
        f"a, b = {n}, {k}\na, b = b, a\nprint(a, b)",
    ],
    "nothing left": lambda w, v, n, k: [
        f"x = {n}\ndel x\nprint('{w}')",
        f"x = {n} * 0\nprint(x)",
        f"print([] or '{w}')",
    ],
    "the same twice": lambda w, v, n, k: [
        "print(23 * 2 + 45 * 4)",
        "a = 23 * 2 + 45 * 4\nprint('so', a)",
        "b = 45 * 4 + 23 * 2\nb",
    ],
    "kept as it is": lambda w, v, n, k: [
        "z = 23 * 2 + 45 * 4",
        "z = z + 0",
        "z = z * 1",
        "print(z)",
    ],
    "sorted": lambda w, v, n, k: [
        f"sorted([{n}, {k}])",
        f"sorted(set('{w}'))",
        f"list(reversed([{n}, {k}, {n + 7}]))",
    ],
    "a shell": lambda w, v, n, k: [
        (
            f"import subprocess\nprint(subprocess.run(['echo', '{w}'], capture_output=True,"
            " text=True).stdout)"
        ),
        f"import os\nos.system('echo {w}')",
    ],
}


def paddings(families: dict[str, Family], count: int, seed: int) -> list[tuple[str, Padding]]:
    """`count` different paddings, each with the name of its family. The families take turns."""
    rng = random.Random(seed)
    found: list[tuple[str, Padding]] = []
    while len(found) < count:
        for name, family in families.items():
            word, other = rng.sample(WORDS, 2)
            found.append((name, family(word, other, rng.randint(11, 97), rng.randint(2, 9))))
    return found[:count]


async def run_session(
    environment: Environment, codes: Sequence[str], session: str
) -> list[ExecutionResult]:
    """Run the snippets one after the other in a new session."""
    return [await environment.execute(code, session=session) for code in codes]


def recorded(codes: Sequence[str], results: Sequence[ExecutionResult]) -> list[ToolCall]:
    """Tool calls as they are recorded."""
    calls: list[ToolCall] = []
    for number, (code, result) in enumerate(zip(codes, results, strict=True)):
        facts = {
            "stdout": result.stdout,
            "stderr": result.stderr,
            "value": result.value,
            "content": tool_content(result),
        }
        call = tool_call(f"call-{number}", result.status)
        calls.append(call.model_copy(update={"arguments": {"code": code}, **facts}))
    return calls
