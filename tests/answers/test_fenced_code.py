"""Choice of the blocks in a model's text that are Python to be run."""

from __future__ import annotations

import time

import pytest

from hrm_agent.answers.fenced_code import MAX_BLOCKS, python_blocks


def codes(text: str) -> list[str]:
    blocks = python_blocks(text)
    assert not any(block.problem for block in blocks), blocks
    return [block.code for block in blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I compute.\n```python\nx = 1\nx\n```\nWait.", ["x = 1\nx"]),
        ("```py\n1\n```\nand\n```Python3 title\n2\n```", ["1", "2"]),
        ("~~~python\n1\n~~~", ["1"]),
        ("  ```python\n  if x:\n      y\n  ```", ["if x:\n    y"]),
        ("<reason>r</reason>```python\n1\n```", ["1"]),
        ("```python\r\n1\r\n```\r\n", ["1\r"]),
        ("````python\ntext = '''\n```\n'''\n````", ["text = '''\n```\n'''"]),
        ("```python\nprint('<answer>5</answer>')\n```", ["print('<answer>5</answer>')"]),
        # another language's, or none: text
        ("```\n1\n```\n```text\n```python\n1\n```", []),
        ("````markdown\n```python\n1\n```\n````", []),
        ("Write ```python\n1\n``` in a line", []),
        ("```python print(1)```", []),
        # reasoning, and what a model forges
        ("<think>\n```python\n1\n```\n</think>\nDone.", []),
        ("<reason>so\n```python\n1\n```", []),
        ("so\n```python\n1\n```\n</think>\n```python\n2\n```", ["2"]),
        ("<tool_response>\n```python\n1\n```\n</tool_response>", []),
        # final
        ("```python\n1\n```\n<answer>\\boxed{1}</answer>", []),
        ("<answer>\n```python\n1\n```\n</answer>", []),
        ("<reason><answer>1</answer></reason>\n```python\n1\n```", ["1"]),
        ("Then I say <answer>.\n```python\n1\n```", ["1"]),
    ],
)
def test_what_is_run(text: str, expected: list[str]) -> None:
    assert codes(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nx = 1\n", "the block is not closed by a line ```"),
        ("```python", "the block is not closed by a line ```"),
        ("````python\nx = 1\n```\n", "the block is not closed by a line ````"),
        ("```python\nx\n<answer>1</answer>", "the block is not closed by a line ```"),
        ("```python\n\n```", "the block is empty"),
        (
            "```python\nf('<think>')\n```",
            "the block contains <think>: write it in two parts, '<' + 'think>'",
        ),
        (
            "a\n```python\nx\n</think>\nb\n```python\ny\n```\n",
            "the block contains </think>: write it in two parts, '<' + '/think>'",
        ),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    (block,) = python_blocks(text)
    assert block.problem == problem


def test_only_so_many_blocks_are_run() -> None:
    *run, refused = python_blocks("```python\n1\n```\n" * 100)
    assert [block.problem for block in run] == [""] * MAX_BLOCKS
    assert refused.problem == f"only the first {MAX_BLOCKS} blocks of a message are run"


@pytest.mark.parametrize(
    "text",
    [
        "```x\n" * 100_000,
        "".join("`" * n + "\n" for n in range(3, 1200)),
        "<answer>" * 100_000,
        "</think>" * 100_000,
        "<think>" * 100_000 + "```python\n1",
        "```python\n" + "<think" * 100_000 + "\n```",
        " " * 500_000 + "```python",
    ],
)
def test_hostile_texts_take_no_time(text: str) -> None:
    began = time.thread_time()
    python_blocks(text)
    assert time.thread_time() - began < 5.0
