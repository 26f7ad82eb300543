"""The policy replaces a provider's class. Structured output by each method equals that of the
class.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypedDict

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr, ValidationError

from hrm_agent.models import using_policy
from hrm_agent.models.external.substitute import standing_in
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.trajectory import Sampling

NOWHERE: Any = {"base_url": "http://127.0.0.1:1", "api_key": SecretStr("x"), "max_retries": 0}


class Plan(BaseModel):
    """A plan."""

    steps: list[str]


class TypedPlan(TypedDict):
    """A plan."""

    steps: list[str]


SCHEMA = {"title": "Plan", "description": "A plan.", **Plan.model_json_schema()}
SCHEMAS: dict[str, Any] = {"Plan": Plan, "TypedPlan": TypedPlan, "json": SCHEMA}


@cache
def model_of(provider: str) -> BaseChatModel:
    if provider == "openai":
        return ChatOpenAI(model="gpt-5", **NOWHERE)
    # here, not above: it takes two seconds, and every process of tests imports this file
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(model="claude-test", **NOWHERE)


def ask(model: str, text: str, schema: Any, method: str, **options: Any) -> tuple[Any, Any]:
    """Structured answer, and the schema that the engine received."""
    structured = model_of(model).with_structured_output(schema, method=method, **options)
    with (
        standing_in(),
        ScriptedEngine([text]) as engine,
        using_policy(engine, Sampling(max_tokens=400)),
    ):
        return structured.invoke("plan"), engine.requests[0].schema


def right(method: str, schema: str) -> str:
    plan = '{"steps": ["a"]}'
    name = "Plan" if schema == "json" else schema
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {plan}}}\n</tool_call>'
    return call if method == "function_calling" else plan


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("model", "method", "options"),
    [
        ("openai", "json_schema", {}),
        ("openai", "json_schema", {"strict": True}),
        ("openai", "json_mode", {}),
        ("openai", "function_calling", {"strict": True}),
        ("anthropic", "json_schema", {}),
        ("anthropic", "function_calling", {}),
    ],
)
def test_right_json_is_what_the_class_gives(
    model: str, method: str, options: dict[str, Any], raw: bool, schema: str
) -> None:
    text, wanted = (
        right(method, schema),
        (Plan(steps=["a"]) if schema == "Plan" else {"steps": ["a"]}),
    )
    found, told = ask(model, text, SCHEMAS[schema], method, include_raw=raw, **options)
    if raw:
        assert found["parsing_error"] is None and found["raw"].text in (text, "")
    assert (found["parsed"] if raw else found) == wanted
    assert method != "json_schema" or told["properties"].keys() == {"steps"}


@pytest.mark.parametrize(
    ("model", "method", "schema", "error"),
    [
        ("openai", "json_schema", "Plan", ValidationError),
        ("openai", "json_schema", "json", OutputParserException),
        ("openai", "json_mode", "Plan", OutputParserException),
        ("anthropic", "json_schema", "TypedPlan", OutputParserException),
    ],
)
def test_wrong_json_raises_what_the_class_raises(
    model: str, method: str, schema: str, error: Any
) -> None:
    with pytest.raises(error):
        ask(model, "no idea", SCHEMAS[schema], method)
    if error is OutputParserException:
        found, _ = ask(model, "no idea", SCHEMAS[schema], method, include_raw=True)
        assert isinstance(found["parsing_error"], error) and found["parsed"] is None
    assert ask(model, "no idea", SCHEMAS[schema], "function_calling")[0] is None
