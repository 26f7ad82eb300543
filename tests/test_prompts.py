"""Prompts by name: where texts are found in requests, and how templates are filled."""

from __future__ import annotations

import copy
import pickle

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from hrm_agent import Prompt, prompts
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.prompts import CRITIC_PROMPT, PLANNER_FORMAT_PROMPT, PLANNER_PROMPT
from hrm_agent.prompts import PromptTexts, fields_of


@pytest.fixture(autouse=True)
def defined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of a test alone, beside the shipped ones."""
    monkeypatch.setattr(prompts, "_texts", copy.deepcopy(prompts._texts))


def sent(texts: PromptTexts, *messages: AnyMessage) -> list[object]:
    return [message.content for message in texts.replace(messages)]


def test_a_prompt_is_its_text() -> None:
    prompt = Prompt("a.b-c", "Say yes.")
    assert prompt == "Say yes." and isinstance(prompt, str)
    assert type(f"{prompt}") is str and type(SystemMessage(prompt).content) is str
    for again in (copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):
        assert again == prompt and again.name == "a.b-c"


@pytest.mark.parametrize(("name", "text"), [("", "x"), ("a:b", "x"), ("1", "x"), ("a", " ")])
def test_a_prompt_without_name_or_text_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError):
        Prompt(name, text)


def test_where_a_text_is_found() -> None:
    Prompt("short", "Think.")
    texts = PromptTexts({"short": "Think twice."})
    blocks = [{"type": "text", "text": "Think."}, {"type": "image", "url": "x"}]
    assert sent(
        texts,
        SystemMessage("Before. Think. After."),
        SystemMessage(content=blocks),
        HumanMessage("Think.\nTask"),
        HumanMessage("Task\nThink."),
        HumanMessage("Do they Think. or not"),
        AIMessage("Think."),
    ) == [
        "Before. Think twice. After.",
        [{**blocks[0], "text": "Think twice."}, blocks[1]],
        "Think twice.\nTask",
        "Task\nThink twice.",
        "Do they Think. or not",
        "Think.",
    ]
    assert texts.names_in([{"type": "system", "content": "Think twice. Now."}]) == {"short"}
    assert texts.names_in([{"type": "ai", "content": "Think."}]) == set()


def test_the_longest_text_is_replaced() -> None:
    texts = PromptTexts({"planner": "Plan.", "planner_format": "Plan, with a format."})
    assert sent(texts, SystemMessage(PLANNER_PROMPT), SystemMessage(PLANNER_FORMAT_PROMPT)) == [
        "Plan.",
        "Plan, with a format.",
    ]
    (both,) = sent(PromptTexts({"planner": "Plan."}), SystemMessage(PLANNER_FORMAT_PROMPT))
    assert str(both).startswith('Plan. Beside "subgoals"')


def test_a_replaced_text_stays() -> None:
    texts = PromptTexts({"critic": f"{CRITIC_PROMPT} Be strict."})
    (once,) = texts.replace([SystemMessage(CRITIC_PROMPT)])
    assert texts.replace([once]) == [once]


@pytest.mark.parametrize(
    ("old", "new", "message", "expected"),
    [
        ("Q: {q}", "{q}?", "Q: a {b} c", "a {b} c?"),
        ("{q} in {s}.", "As {s}: {q}", "x + y in words.", "As words: x + y"),
        ("{q} or {q}", "{q}", "a or a", "a"),
        ("{q} or {q}", "{q}", "a or b", None),
        ("{{x}} {q:>3}", "{q} {{y}}", "{x}   a", "  a {y}"),
        ('Write {{"a": 1}}', 'Give {{"b": 2}}', 'Write {"a": 1}', 'Give {"b": 2}'),
        ('Write {"a": 1}', 'Give {"b": 2}', 'Write {"a": 1}', 'Give {"b": 2}'),
    ],
)
def test_a_template_is_filled_again(old: str, new: str, message: str, expected: str | None) -> None:
    Prompt("template", old)
    (found,) = sent(PromptTexts({"template": new}), HumanMessage(message))
    assert found == (message if expected is None else expected)


def test_values_that_cannot_be_told_apart_are_refused() -> None:
    Prompt("template", "{a} and {b}")
    texts = PromptTexts({"template": "{b}, {a}"})
    assert sent(texts, HumanMessage("x and y")) == ["y, x"]
    with pytest.raises(ConfigError, match="cannot be told apart"):
        sent(texts, HumanMessage("x and y and z"))


def test_fields() -> None:
    assert fields_of("{a} {b:>3} {{c}}") == {"a", "b"}
    assert fields_of(CRITIC_PROMPT) == fields_of("{") == fields_of("{0} {}") == set()


def test_names_that_are_not_unique() -> None:
    Prompt("twice", "One.")
    module = {"Prompt": Prompt, "__name__": "other"}
    exec('Prompt("twice", "Two."); Prompt("twice", "Three with {a}.")', module)
    texts = PromptTexts({"twice": "Four."})
    # the others may be of other graphs of the process
    assert sent(texts, SystemMessage("One.")) == ["Four."]
    with pytest.raises(ConfigError, match=r"two prompts called 'twice', in .* and in other"):
        sent(texts, SystemMessage("Two."))
    with pytest.raises(ConfigError, match=r"lacks the field \{a\}"):
        sent(PromptTexts({"twice": "Four."}), SystemMessage("Three with {a}."))
    with pytest.raises(ConfigError, match=r"has the unknown field \{b\}"):
        PromptTexts({"twice": "{b}"})


def test_equal_prompts_have_equal_texts() -> None:
    Prompt("one", "The same.")
    Prompt("two", "The same.")
    PromptTexts({"one": "x", "two": "x"})
    with pytest.raises(ConfigError, match="are equal in the source"):
        PromptTexts({"one": "x", "two": "y"})
