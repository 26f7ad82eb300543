"""JSON behind a mark: Llama 3, Mistral, DeepSeek, Granite. The texts are written by hand."""

from __future__ import annotations

import pytest

from hrm_agent.models.codec.calls.form import CallForm, Schemas
from hrm_agent.models.codec.calls.marked_json import DEEPSEEK, GRANITE, LLAMA, MISTRAL

CODE: Schemas = {
    "python": {
        "properties": {"code": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["code"],
    }
}
BEGIN = "<｜tool▁calls▁begin｜>"
END = "<｜tool▁calls▁end｜>"
CALL = "<｜tool▁call▁begin｜>"
SEP = "<｜tool▁sep｜>"
CLOSE = "<｜tool▁call▁end｜>"


def fenced(name: str, arguments: str) -> str:
    return f"{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CLOSE}"


ONE = fenced("f", '{"x": 1}')
NONE = fenced("g", "{}")
OPEN = fenced("f", '{"x": ')
MORE = fenced("f", "{} x")
RIGHT = (
    (LLAMA, '{"name": "f", "parameters": {"x": 1}}'),
    (LLAMA, ' \n{"name": "f", "arguments": {"x": 1}}\n'),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}'),
    (LLAMA, '{"type": "function", "name": "f", "parameters": {"x": 1}}'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]'),
    (MISTRAL, '[TOOL_CALLS] [ {"name": "f", "arguments": {"x": 1}, "id": "abcdefgh1"} ]'),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1}'),
    (MISTRAL, '[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS] {"x": 1}\n'),
    (MISTRAL, '[TOOL_CALLS]f{"x": 1}'),
    (GRANITE, '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]'),
    (GRANITE, '<|tool_call|>[{"name": "f", "parameters": {"x": 1}}]<|/tool_call|>'),
    (GRANITE, '<|tool_call|>{"name": "f", "arguments": {"x": 1}}'),
    (DEEPSEEK, f"{BEGIN}{ONE}{END}"),
    (DEEPSEEK, f'{BEGIN}{CALL}f{SEP}{{"x": 1}}{CLOSE}{END}'),
    (DEEPSEEK, f"{BEGIN}{ONE}"),
)


@pytest.mark.parametrize(("form", "text"), RIGHT)
def test_a_call_is_read(form: CallForm, text: str) -> None:
    turn = form.read(text, {})
    assert turn.tool_calls == [{"name": "f", "args": {"x": 1}}]
    assert (turn.content, turn.invalid_tool_calls) == ("", [])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (LLAMA, '{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}'),
        (
            LLAMA,
            '<|python_tag|>{"name": "f", "parameters": {"x": 1}}\n{"name": "g", "parameters": {}}',
        ),
        (
            MISTRAL,
            '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        ),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}'),
        (
            GRANITE,
            '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        ),
        (DEEPSEEK, f"{BEGIN}{ONE}\n{NONE}{END}"),
        (DEEPSEEK, f"{BEGIN}{ONE}{END}{BEGIN}{NONE}{END}"),
    ],
)
def test_several_calls_are_read(form: CallForm, text: str) -> None:
    turn = form.read(text, {})
    assert turn.tool_calls == [{"name": "f", "args": {"x": 1}}, {"name": "g", "args": {}}]
    assert (turn.content, turn.invalid_tool_calls) == ("", [])


@pytest.mark.parametrize("form", [MISTRAL, GRANITE, DEEPSEEK], ids=lambda form: form.name)
def test_words_before_calls_are_the_content(form: CallForm) -> None:
    text = next(text for known, text in RIGHT if known is form)
    turn = form.read(f" First.\n{text}", {})
    assert (turn.content, len(turn.tool_calls)) == ("First.", 1)


@pytest.mark.parametrize(
    ("form", "text"), [(form, text) for form, text in RIGHT if '"x": 1' in text]
)
@pytest.mark.parametrize(
    "value",
    [
        "[TOOL_CALLS]g[ARGS]{}",
        "<|tool_call|>[]",
        f"{END}{CLOSE}",
        f"```{CLOSE}{CALL}g{SEP}{{}}",
        "<|python_tag|>",
        "}]",
    ],
)
def test_a_string_may_hold_tags(form: CallForm, text: str, value: str) -> None:
    (call,) = form.read(text.replace('"x": 1', f'"x": "{value}"'), {}).tool_calls
    assert call == {"name": "f", "args": {"x": value}}


@pytest.mark.parametrize(
    "text",
    [
        "It is {x}.",
        '{"answer": 42}',
        '{"name": "Ada", "age": 36}',
        "{ not JSON",
        "{",
        '["f"]',
        "```python\n{}\n```",
        "",
    ],
)
def test_llamas_words_are_no_calls(text: str) -> None:
    turn = LLAMA.read(text, CODE)
    assert (turn.content, turn.tool_calls, turn.invalid_tool_calls) == (text, [], [])


def test_code_behind_llamas_mark_is_for_the_one_tool_that_takes_it() -> None:
    turn = LLAMA.read("<|python_tag|>a = 6\nprint(a * 7)", CODE)
    assert turn.tool_calls == [{"name": "python", "args": {"code": "a = 6\nprint(a * 7)"}}]
    for schemas in (
        {},
        {**CODE, "shell": CODE["python"]},
        {"add": {"properties": {"a": {"type": "integer"}}}},
    ):
        (found,) = LLAMA.read("<|python_tag|>print(1)", schemas).invalid_tool_calls
        assert "one string" in found["error"] and found["args"] == "print(1)"


@pytest.mark.parametrize(
    ("form", "text", "name", "error"),
    [
        (LLAMA, '{"name": "f", "parameters": {"x": 1}', None, "Expecting ','"),
        (LLAMA, '{"name": "f", "parameters": {"x": "1}}', None, "Unterminated string"),
        (LLAMA, '{"name": "f", "parameters": 1}', "f", "must be a JSON object, but is a number"),
        (LLAMA, '{"name": 1, "parameters": {}}', None, "no 'name'"),
        (LLAMA, '{"name": "f", "parameters": {"x": ' + "[" * 100_000, None, "nested too deeply"),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}', None, "Expecting"),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": "{}"}]', "f", "is a string"),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1', "f", "Expecting"),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": 1} and so on', "f", "text stands after"),
        (MISTRAL, "[TOOL_CALLS]f", "f", "Expecting value"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS][1]", "f", "is an array"),
        (MISTRAL, '[TOOL_CALLS][ARGS]{"x": 1}', None, "no 'name'"),
        (MISTRAL, "[TOOL_CALLS]", None, "Expecting value"),
        (GRANITE, '<|tool_call|>[{"name": "f"', None, "Expecting"),
        (GRANITE, '<|tool_call|>[{"name": "f"}]', "f", "missing"),
        (GRANITE, "<|tool_call|>f(x=1)", None, "Expecting value"),
        (GRANITE, '<|tool_call|>["f"]', None, "not a string"),
        (
            DEEPSEEK,
            f'{BEGIN}{CALL}function{SEP}f\n```json\n{{"x": 1}}\n```{END}',
            "f",
            "not closed by",
        ),
        (DEEPSEEK, f"{BEGIN}{OPEN}{END}", "f", "Expecting"),
        (DEEPSEEK, f"{BEGIN}{CALL}f{CLOSE}{END}", None, "no <｜tool▁sep｜>"),
        (DEEPSEEK, f"{BEGIN}{MORE}{END}", "f", "text stands after"),
        (DEEPSEEK, f"{BEGIN}f(x=1){END}", None, "a call begins with"),
        (DEEPSEEK, f"{BEGIN}{END}", None, "a call begins with"),
        (DEEPSEEK, BEGIN, None, "a call begins with"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(
    form: CallForm, text: str, name: str | None, error: str
) -> None:
    turn = form.read(text, {})
    assert (turn.content, turn.tool_calls) == ("", [])
    (found,) = turn.invalid_tool_calls
    assert error in found["error"] and found["name"] == name


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"x": [TOOL_CALLS]g[ARGS]{}'),
        (MISTRAL, "[TOOL_CALLS]f[TOOL_CALLS]g[ARGS]{}"),
        (DEEPSEEK, f"{BEGIN}{OPEN}{NONE}{END}"),
        (DEEPSEEK, f"{BEGIN}{CALL}function{SEP}f\n```json\n{{}}{NONE}{END}"),
        (DEEPSEEK, f"{BEGIN}{OPEN}{BEGIN}{NONE}{END}"),
    ],
)
def test_a_call_behind_a_broken_one_is_read(form: CallForm, text: str) -> None:
    turn = form.read(text, {})
    assert turn.tool_calls == [{"name": "g", "args": {}}]
    assert [found["name"] for found in turn.invalid_tool_calls] == ["f"]
