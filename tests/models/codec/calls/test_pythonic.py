"""Forms of Python: LFM2's calls between marks, and bare lists. The texts are written by hand."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from hrm_agent.models.codec.calls.pythonic import PYTHONIC, PYTHONIC_BARE


def marked(calls: str) -> str:
    return f"<|tool_call_start|>{calls}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("", {}),
        ("code='a', n=3", {"code": "a", "n": 3}),
        ('code = "it\'s", ', {"code": "it's"}),
        (r"code='it\'s \n \t \\ \x41 \u00e9 \101 \d'", {"code": "it's \n \t \\ A é A \\d"}),
        (r"code=r'\n'", {"code": r"\n"}),
        ('code="""a\n"b" \'c\'\n"""', {"code": "a\n\"b\" 'c'\n"}),
        ("code='''a''b'''", {"code": "a''b"}),
        ("code=('a'\n \"b\")", {"code": "ab"}),
        ("code=''", {"code": ""}),
        (
            "x=-1.5, y=1e3, z=.5, h=0x1f, u=1_000, w=2.",
            {"x": -1.5, "y": 1000.0, "z": 0.5, "h": 31, "u": 1000, "w": 2.0},
        ),
        ("a=True, b=false, c=None, d=null", {"a": True, "b": False, "c": None, "d": None}),
        ("l=[1, 'a', [], (2, 3), (4,)]", {"l": [1, "a", [], [2, 3], [4]]}),
        ("o={'k': {\"l\": [1]}, 2: 'two'}", {"o": {"k": {"l": [1]}, "2": "two"}}),
        ("code='<|tool_call_end|>', n=1", {"code": "<|tool_call_end|>", "n": 1}),
        (
            "code='<|tool_call_start|>[g()]<|tool_call_end|>'",
            {"code": "<|tool_call_start|>[g()]<|tool_call_end|>"},
        ),
        ("code='a)], g(x='", {"code": "a)], g(x="}),
    ],
)
def test_arguments(written: str, arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="error"):
        for calls in (f"[f({written})]", f" f( {written}) ", f"[\nf({written}),\n]"):
            assert PYTHONIC.read(marked(calls), {}).tool_calls == [{"name": "f", "args": arguments}]
        assert PYTHONIC_BARE.read(f" [f({written})]\n", {}).tool_calls == [
            {"name": "f", "args": arguments}
        ]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("code='print('a', \"b\")'", {"code": "print('a', \"b\")"}),
        ("code='a\nb = '\\n'', n=3", {"code": "a\nb = '\\n'", "n": 3}),
        ("code='f(x='1')\n', o={\"k\": 'v'}", {"code": "f(x='1')\n", "o": {"k": "v"}}),
        ("code='''", {"code": "'"}),
        (
            "code='a = '</tool_call>'\n<|tool_call_end|>'",
            {"code": "a = '</tool_call>'\n<|tool_call_end|>"},
        ),
    ],
)
def test_strings_without_escapes(written: str, arguments: dict[str, Any]) -> None:
    """Strings as LFM2.5's template writes them."""
    assert PYTHONIC.read(marked(f"[f({written})]"), {}).tool_calls == [
        {"name": "f", "args": arguments}
    ]


def test_calls_and_the_words_around_them() -> None:
    turn = PYTHONIC.read(f"First. {marked('[f(n=1), a.b(x=2)]')} and {marked('[g()]')} Last.", {})
    assert turn.tool_calls == [
        {"name": "f", "args": {"n": 1}},
        {"name": "a.b", "args": {"x": 2}},
        {"name": "g", "args": {}},
    ]
    assert (turn.content, turn.invalid_tool_calls) == ("First.  and  Last.", [])


def test_one_of_several_calls_that_cannot_be_kept_leaves_the_others() -> None:
    for calls in (
        "[f(n=1), g(n=99999999999999999999), f(n=2)]",
        "f(n=1), g(n=99999999999999999999), f(n=2)",
    ):
        turn = PYTHONIC.read(marked(calls), {})
        assert [found["args"] for found in turn.tool_calls] == [{"n": 1}, {"n": 2}]
        (kept,) = (found["args"] for found in turn.invalid_tool_calls)
        assert kept == marked(
            "[g(n=99999999999999999999)]" if "[" in calls else "g(n=99999999999999999999)"
        )


def test_a_string_without_escapes_that_holds_the_end_of_its_calls_is_never_cut() -> None:
    for rest in ("", ", n=1"):
        text = marked(f"[f(code='x')]<|tool_call_end|>y'{rest})]")
        turn = PYTHONIC.read(f"So:{text} Last.", {})
        assert (turn.content, turn.tool_calls) == ("So: Last.", [])
        assert [(found["name"], found["args"]) for found in turn.invalid_tool_calls] == [
            ("f", text)
        ]
    turn = PYTHONIC.read(f"{marked('[f()]')} say <|tool_call_end|> {marked('[g()]')}", {})
    assert (turn.content, len(turn.tool_calls)) == ("say <|tool_call_end|>", 2)


INVALID = {
    "[f('a')]": "f: arguments are given by name",
    "[f(code=6 * 7)]": "neither a comma nor ) follows",
    "[f(code=open('x'))]": "not a literal",
    "[f(**{})]": "arguments are given by name",
    "[f(code=f'{x}')]": "not a literal",
    "[f(code=b'x')]": "not a literal",
    "[f(code='a)]": "a string has no end",
    "[f(code=[1)]": "neither a comma nor ] follows",
    "[f(code={'a'})]": "a key has no value",
    "[f]": "a call is NAME(ARGUMENT=VALUE)",
    "[]": "a call is NAME(ARGUMENT=VALUE)",
    "": "a call is NAME(ARGUMENT=VALUE)",
    '{"name": "f", "arguments": {}}': "a call is NAME(ARGUMENT=VALUE)",
    "[f(n=1j)]": "neither a comma nor ) follows",
    "[f(n=" + "9" * 5000 + ")]": "not a literal",
    "[f(n=" + "[" * 300 + "]" * 300 + ")]": "levels deep",
    "[f(n=" + "[" * 70 + "]" * 70 + ")]": "levels deep",
    f"[f(n={2**64})]": "64 bits",
}


@pytest.mark.parametrize(("calls", "error"), INVALID.items(), ids=range(len(INVALID)))
def test_calls_that_cannot_be_read_say_why(calls: str, error: str) -> None:
    turn = PYTHONIC.read(f"So:{marked(calls)}", {})
    assert turn.tool_calls == [] and turn.content == "So:"
    (found,) = turn.invalid_tool_calls
    assert error in found["error"] and found["args"] == marked(calls)


def test_unclosed_calls_hide_nothing_behind_them() -> None:
    right = marked('[f(code="1")]')
    for wrong in (
        '<|tool_call_start|>[f(code="1")]',
        "<|tool_call_start|>[f(",
        marked('[f(code="1)]'),
        marked("[f("),
    ):
        turn = PYTHONIC.read(f"{wrong}\n{right}", {})
        assert [found["args"] for found in turn.tool_calls] == [{"code": "1"}]
        assert len(turn.invalid_tool_calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "[f(x) for x in y]",
        "[link](https://a.b)",
        "see [f(n=1)]",
        "[f(x), g(y)]",
        "",
        "[",
        "[see f(x=1)]",
    ],
)
def test_other_lists_are_words(text: str) -> None:
    turn = PYTHONIC_BARE.read(text, {})
    assert (turn.content, turn.tool_calls, turn.invalid_tool_calls) == (text, [], [])


@pytest.mark.parametrize("text", ["[f(n=1)", "[f(n=1)] and so on", "[f(n=x)]", "[f(n=1), g(2)]"])
def test_a_bare_list_that_begins_as_calls_is_no_answer(text: str) -> None:
    turn = PYTHONIC_BARE.read(text, {})
    assert (turn.content, turn.tool_calls) == ("", [])
    assert [found["args"] for found in turn.invalid_tool_calls] == [text]
