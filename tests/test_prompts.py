"""Prompts by name: where texts are found in requests, and how templates are filled."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from hrm_agent import Prompt, prompts
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.prompts import CRITIC_PROMPT, PLANNER_FORMAT_PROMPT, PLANNER_PROMPT
from hrm_agent.prompts import PromptTexts, fields_of, texts_on_record, using_prompts, with_prompts


@pytest.fixture(autouse=True)
def defined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of a test alone, beside the shipped ones."""
    shipped = {
        name: dict(texts)
        for name, texts in prompts._texts.items()
        if all(module.startswith("hrm_agent.") for module in texts.values())
    }
    monkeypatch.setattr(prompts, "_texts", shipped)


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
    # the longer prompt stays if the shorter one alone is replaced
    texts = PromptTexts({"planner": "Plan."})
    both = [SystemMessage(PLANNER_PROMPT), SystemMessage(PLANNER_FORMAT_PROMPT)]
    assert sent(texts, *both) == ["Plan.", PLANNER_FORMAT_PROMPT]
    assert [*texts.reached] == ["planner"]
    Prompt("helper", "You are a helper.")
    Prompt("guide", "You are a helper. Tell about {topic}.")
    about = SystemMessage("You are a helper. Tell about birds.")
    assert sent(PromptTexts({"helper": "Help."}), about) == [about.content]


def test_a_replaced_text_stays() -> None:
    texts = PromptTexts({"critic": f"{CRITIC_PROMPT} Be strict."})
    (once,) = texts.replace([SystemMessage(CRITIC_PROMPT)])
    assert texts.replace([once]) == [once]


@pytest.mark.parametrize(
    ("old", "new", "message", "expected"),
    [
        ("Ask: {q}", "{q}, please?", "Ask: a {b} c", "a {b} c, please?"),
        ("{q} in {s}, now", "Say as {s}: {q}", "x + y in words, now", "Say as words: x + y"),
        ("Pick {q} or {q}?", "Test {q}", "Pick a or a?", "Test a"),
        ("Pick {q} or {q}?", "Test {q}", "Pick a or b?", None),
        ("{{x}} + {q:>3}", "{q} + {{y}}", "{x} +   a", "  a + {y}"),
        ("Say yes.", 'Write {{"a": 1}}', "Say yes.", 'Write {"a": 1}'),
        ('Write {{"a": 1}}', 'Give {{"b": 2}}', 'Write {"a": 1}', 'Give {"b": 2}'),
        ('Write {"a": 1}', 'Give {"b": 2}', 'Write {"a": 1}', 'Give {"b": 2}'),
    ],
)
def test_a_template_is_filled_again(old: str, new: str, message: str, expected: str | None) -> None:
    Prompt("template", old)
    (found,) = sent(PromptTexts({"template": new}), HumanMessage(message))
    assert found == (message if expected is None else expected)


def test_values_that_cannot_be_told_apart_are_refused() -> None:
    Prompt("template", "Both {a} and {b}")
    texts = PromptTexts({"template": "Then {b}, {a}"})
    assert sent(texts, HumanMessage("Both x and y")) == ["Then y, x"]
    with pytest.raises(ConfigError, match="cannot be told apart"):
        sent(texts, HumanMessage("Both x and y and z"))
    assert texts.names_in([{"type": "human", "content": "Both x and y and z"}]) == {"template"}


def test_a_message_that_only_has_the_middle_of_a_template() -> None:
    Prompt("template", "{a}\n\nThese are the facts: {b}")
    texts = PromptTexts({"template": "These are the facts: {b}\n\n{a}"})
    assert sent(texts, HumanMessage("x\n\nThese are the facts: y")) == [
        "These are the facts: y\n\nx"
    ]
    twice = "x\n\nThese are the facts: y\n\nThese are the facts: z"
    assert sent(texts, HumanMessage(twice)) == [twice]


def test_a_template_needs_characters_of_its_own() -> None:
    Prompt("template", "{a}\n\n{b}")
    with pytest.raises(ConfigError, match="source text of the prompt 'template' has too few char"):
        PromptTexts({"template": "First {a}, then {b}"})
    Prompt("ask", "Ask: {q}")
    with pytest.raises(ConfigError, match="new text of the prompt 'ask' has too few characters"):
        PromptTexts({"ask": "{q}"})
    with pytest.raises(ConfigError, match="has a conversion or a format"):
        PromptTexts({"ask": "Answer: {q!r:>20}"})
    with pytest.raises(ConfigError, match="is not a template: it has a brace"):
        PromptTexts({"ask": 'Reply {"a": 1}. {q}'})


def test_a_filled_new_template_is_found_in_a_record() -> None:
    Prompt("ask", "Ask: {q}")
    texts = PromptTexts({"ask": "Answer in one word: {q}"})
    (message,) = texts.replace([HumanMessage("Ask: why?")])
    for made in (texts, PromptTexts.unchanged(texts.texts, [])):
        assert made.names_in([{"type": "human", "content": message.content}]) == {"ask"}
        assert made.names_in([{"type": "human", "content": "why?"}]) == set()


def test_texts_of_the_task_are_not_replaced() -> None:
    Prompt("adder", "You add numbers.")
    Prompt("ask", "Context: {c}\nQuestion: {q}")
    task = "You add numbers. Is that right?"
    quoted = "Context: a\nQuestion: b\nQuestion: 2"
    new = {"adder": "Write numbers.", "ask": "With {c}, answer {q}"}
    texts = PromptTexts(new, [task, "I say: You add numbers.", quoted, "numbers"])
    assert sent(
        texts,
        SystemMessage("You add numbers."),
        SystemMessage(f"You add numbers. The user said: {task}"),
        HumanMessage(task),
        HumanMessage(f"{task} Answer."),
        HumanMessage(f"The user said: {'I say: You add numbers.'}"),
        HumanMessage(quoted),
        HumanMessage(f"You add numbers.\n{task}"),
    ) == [
        "Write numbers.",
        f"Write numbers. The user said: {task}",
        task,
        f"{task} Answer.",
        "The user said: I say: You add numbers.",
        quoted,
        f"Write numbers.\n{task}",
    ]
    # a task that is the prompt itself
    same = PromptTexts(new, ["You add numbers."])
    both = [SystemMessage("You add numbers."), HumanMessage("You add numbers.")]
    assert sent(same, *both) == ["Write numbers.", "You add numbers."]


def test_both_ends_of_a_message_are_replaced() -> None:
    Prompt("intro", "Read this.")
    Prompt("outro", "Be brief.")
    texts = PromptTexts({"intro": "Listen.", "outro": "Be kind."})
    asked = HumanMessage("Read this.\nTask\nBe brief.")
    assert sent(texts, asked) == ["Listen.\nTask\nBe kind."]


def test_a_thread_without_the_context_of_its_run() -> None:
    Prompt("adder", "You add numbers.")
    asked = [SystemMessage("You add numbers.")]

    def sent_from_a_thread() -> object:
        with ThreadPoolExecutor() as pool:
            return pool.submit(with_prompts, asked, in_graph=False).result()[0].content

    texts = PromptTexts({"adder": "Write numbers."})
    with using_prompts(texts):
        assert sent_from_a_thread() == "Write numbers."
        with using_prompts(PromptTexts({"adder": "Write numbers."})):
            assert sent_from_a_thread() == "Write numbers."
        with using_prompts(None), pytest.raises(ConfigError, match="without the context of its"):
            sent_from_a_thread()
    assert sent_from_a_thread() == "You add numbers."


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
    module["__name__"] = __name__
    exec('Prompt("twice", "Two of one module.")', module)
    both = [SystemMessage("One."), SystemMessage("Two of one module.")]
    with pytest.raises(
        ConfigError, match=r"two prompts called 'twice' in .*, with different texts"
    ):
        sent(PromptTexts({"twice": "Four."}), *both)
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
    with pytest.raises(ConfigError, match="'one' and 'two' are equal in the source"):
        PromptTexts({"one": "x"})
    PromptTexts({"one": "The same."})


def test_a_renamed_prompt_of_a_record() -> None:
    with pytest.raises(ConfigError, match=r"no prompt 'renamed'.* recorded with the run"):
        texts_on_record({"renamed": "x"}, [])
