"""Choice of the program in an answer. Whole answers in many forms:
`tests/rewards/test_code_tests.py`.
"""

from __future__ import annotations

import time

import pytest

from hrm_agent.answers.program_text import code_in

DOCUMENTED = [
    f'def f():\n    """\n{fences}```\n    f()\n{fences}```\n    """\n    return 1'
    for fences in ("    ", "  ", "")
]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\n1\n```\n```python\n2\n```", "2\n"),
        ("```python\nf(1\n```\n```python\n2\n```\n```python\nf(", "2\n"),
        ("```python\nf(1\n```", "f(1\n"),
        ("```python\nf(1\n```\n```python\nf(2\n```", "f(2\n"),
        ("```python\nf(", None),
        ("```\nf(", None),
        ("```\n1\n```\n```py\n2\n```\n```\n3\n```", "2\n"),
        ("```\n1\n```\n```\n2\n```", "2\n"),
        ("```python\nx = '''\n```\n", "x = '''\n"),
        ("```python\n\n```", None),
        ("```bash\nls\n```", None),
        ("```python-repl\n1\n```", None),
        ("```pycon\n1\n```", None),
        ("```cpp\nint x;\n```\n```\n2\n```", "2\n"),
        ("Use ```f(x)``` so.", None),
        ("~~~py\n```\n~~~", "```\n"),
        ("<think>```python\n1\n```</think>", None),
        ("  x = 1 ", "x = 1"),
        *((f"```python\n{code}\n```", f"{code}\n") for code in DOCUMENTED),
        *((f"```python\n{code}\n```\nSo:\n```python\nf()\n```", "f()\n") for code in DOCUMENTED),
        *((code, code) for code in DOCUMENTED),
        ("```\nprint(5)\n```\nOutput:\n```\n5\n```", "print(5)\n"),
        ("```\nprint (5)\n```\nOutput:\n```\n5\n```", "print (5)\n"),
        ("```python\nprint(1)```", "print(1)"),
        ("```python\nprint(1)```\nOutput:\n```\n5\n```", "print(1)"),
        ("```python\nprint(1)\n``` done.", "print(1)\n"),
        ("The code: ```python\nprint(1)\n```", "print(1)\n"),
        ("```code\nprint(1)\n```", "print(1)\n"),
        ('print("```")', 'print("```")'),
        ("```python\nprint(1)\n```\n```python\n# print(2)\n```", "print(1)\n"),
        ("", None),
    ],
)
def test_the_last_whole_block_of_python_is_the_program(text: str, program: str | None) -> None:
    assert code_in(text) == program


@pytest.mark.parametrize(
    "part",
    [
        "```\n",
        "```python\n",
        "```python\nf(\n```\n",
        "~~~\n```\n",
        "`",
        " ",
        "- ",
        "> ",
        "1. ",
        "```.",
        "(",
        "'''\n",
        "\\",
    ],
)
@pytest.mark.parametrize("before", ["", "```python\n"])
def test_hostile_texts_take_no_time(before: str, part: str) -> None:
    text = before + part * (400_000 // len(part))
    began = time.thread_time()
    code_in(text)
    assert time.thread_time() - began < 5.0
