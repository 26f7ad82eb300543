"""Which part of an answer is its program. Whole answers in many forms: `tests/rewards/test_code_tests.py`."""

from __future__ import annotations

import time

import pytest

from hrm_agent.answers.program_text import code_in


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
