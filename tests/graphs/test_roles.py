"""Reading of roles' texts, error messages for unreadable ones, and bounds on the time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import BaseModel

from hrm_agent.answers.json_repair import json_values
from hrm_agent.answers.typed_reply import UnparsableAnswer, read_as
from hrm_agent.graphs.parts.roles import CallOptions, Role, ask_role
from hrm_agent.graphs.reasoning.answer_checks import format_of
from hrm_agent.graphs.reasoning.critique import CriticAnswer
from hrm_agent.graphs.reasoning.plan import PlannerAnswer
from hrm_agent.models import using_policy
from hrm_agent.models.scripted import ScriptedEngine


class Judgement(BaseModel):
    fair: bool
    why: str = ""


JUDGE = Role("judge", "Is it fair?", Judgement, temperature=0.0)


@pytest.mark.parametrize(
    "said",
    [
        '{"fair": true, "why": "it is"}',
        'Well. {"fair": true, "why": "it is"} So there.',
        '```json\n{"fair": true, "why": "it is"}\n```',
        '<think>{"fair": false}</think>{"fair": true, "why": "it is"}',
        '{"fair": false} or rather {"fair": true, "why": "it is"}',
        "{'fair': True, 'why': 'it is'}",
        "{fair: yes, why: it is}",
        '{"fair": true, "why": "it is",}',
        '{"fair": true "why": "it is"}',
        '{"fair": true, // as far as I see\n "why": "it is"}',
        "{“fair”: true, “why”: “it is”}",
        '{"fair": true, "why": "it is',
        'With {braces}: {"fair": true, "why": "it is"',
    ],
)
def test_what_is_meant_is_read(said: str) -> None:
    assert read_as(Judgement, said) == Judgement(fair=True, why="it is")


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ('{"a": "he said "no" to it"}', {"a": 'he said "no" to it'}),
        ("{'a': 'it's'}", {"a": "it's"}),
        ('{"a": [1, {"b": "c"', {"a": [1, {"b": "c"}]}),
        ('{"a": [1, 2}', {"a": [1, 2]}),
        ('{"a": "\\ud83c\\udf50 \\ud800"}', {"a": "🍐 \ufffd"}),
        ('{"a": None, "b": (1, 2)}', {"a": None, "b": [1, 2]}),
    ],
)
def test_broken_json(said: str, value: Any) -> None:
    assert next(json_values(said)) == value


@pytest.mark.parametrize(
    "said",
    ["{" * 10**6, "[" * 10**6, '{"a":' * 10**5, '"' * 10**6, '{"a": "' + '\\"' * 10**5, '{"a": "b" c" ' * 10**5,
     "{ " * 10**5, "```json" * 10**5, '{"a": ' + "'x" * 10**5, "{/*" * 10**5, "<answer>" * 10**5, '{"a":1}' * 10**5],
    ids=lambda said: said[:8],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_in_no_time(said: str) -> None:
    began = time.thread_time()
    with pytest.raises(UnparsableAnswer):
        read_as(Judgement, said)
    assert time.thread_time() - began < 10


def test_verdicts_by_other_names() -> None:
    read = {
        said: read_as(CriticAnswer, said).action
        for said in ("Submit.", '{"verdict": "OK"}', '{"action": "give up"}')
    }
    assert list(read.values()) == ["accept", "accept", "give_up"]
    nested = read_as(
        CriticAnswer,
        '{"verdict": {"action": "fix", "name": "x", "reason": "a\\nb", "check": ["a", "b"]}}',
    )
    assert nested == CriticAnswer(action="revise", subgoal="x", hint="a b", check="a\nb")
    assert nested.where(["x"], may_ask=False) == nested
    assert nested.where(["y"], may_ask=False).action == "replan"


def test_plans_by_other_names() -> None:
    two = '{"id": 2, "goal": " ", "description": "two", "depends_on": "one"}'
    plan = read_as(PlannerAnswer, f'{{"steps": ["one", {two}]}}')
    assert [s.model_dump() for s in plan.subgoals] == [
        {"name": "", "goal": "one", "needs": []},
        {"name": "2", "goal": "two", "needs": ["one"]},
    ]


@pytest.mark.parametrize(
    ("final_format", "problem", "kept", "broken"),
    [
        ("Answer: <number>", "", "Answer: -1,234.5", "Answer: many"),
        (
            "Return exactly: 'Answer: <fruit>'.",
            "",
            "Answer: blood orange",
            "'Answer: blood orange'",
        ),
        ("", "Add. Return exactly: 'Answer: <litres>'.", "Answer: 7", "7"),
        (
            "",
            'Answer in the form "x = <integer>, y = <integer>"',
            "x = 3, y = -4",
            "x = 3, y = 4.5",
        ),
        ("<answer>\\boxed{<integer>}</answer>", "", "<answer>\\boxed{42}</answer>", "42"),
        ("Verdict: <yes|no>", "", "Verdict: no", "Verdict: perhaps"),
        ("<integer>,<number>,<number>", "", "1,2,300", "1,2"),
        ("Answer: <number>", "", "Answer: 12,345.5e3/7", "Answer: 5."),
    ],
)
def test_formats(final_format: str, problem: str, kept: str, broken: str) -> None:
    wanted = format_of(final_format, problem)
    assert wanted is not None and wanted.read(f"<reason>so</reason> {kept}\n") == kept
    with pytest.raises(UnparsableAnswer, match="exactly of the form"):
        wanted.read(broken)
    assert wanted.found_in(f"Of course!\n**{kept}**\nBye.") == kept


@pytest.mark.parametrize(
    ("final_format", "said"),
    [
        ("Answer: <number>", "Answer: " + "1" * 1900 + "x"),
        ("<integer>,<integer>,<integer>", "1," * 999 + "x"),
        ("<a>: <number>,<number> <b>.", ": 1,111,111,111 " * 120),
        ("<a> is <b>.", " is " * 490 + "x"),
    ],
)
def test_answers_that_keep_no_format_are_told_in_no_time(final_format: str, said: str) -> None:
    wanted = format_of(final_format, "")
    began = time.thread_time()
    assert wanted is not None and wanted.found_in(f"{said}\n" * 500) is None
    assert time.thread_time() - began < 10


@pytest.mark.parametrize(
    ("final_format", "problem"),
    [
        ("", "What is 6 * 7?"),
        ("A short sentence.", ""),
        ("Give the result as <number> apples, and say why", ""),
        ("", "Tom said 'take <two> pears'. How many are left?"),
        ("<a> <b> <c>", ""),
        ("<integer><integer>", ""),
        ("<integer>, " * 5, ""),
    ],
)
def test_where_no_format_can_be_told_there_is_no_check(final_format: str, problem: str) -> None:
    assert format_of(final_format, problem) is None


async def test_a_role_is_shown_its_own_error_once() -> None:
    with ScriptedEngine(["Yes.", '{"fair": true}']) as engine, using_policy(engine):
        said = await ask_role(JUDGE, "Three for you.")
        assert said.value == Judgement(fair=True) and len(said.messages) == 2
        shown = engine.requests[1].messages
        assert [m.text for m in shown[:3]] == ["Is it fair?", "Three for you.", "Yes."]
        assert "no JSON object" in shown[3].text and engine.requests[1].sampling.temperature == 0


async def test_a_role_that_cannot_be_understood_says_nothing() -> None:
    with ScriptedEngine(lambda _: '{"fair": "perhaps"}') as engine, using_policy(engine):
        said = await ask_role(JUDGE, "One for me.")
        assert said.value is None and said.complaint.startswith("fair: ") and engine.calls == 2
        assert len((await ask_role(JUDGE, "One for me.", CallOptions(calls=1))).messages) == 1
        assert (await ask_role(JUDGE, "One for me.", CallOptions(max_tokens=0))).messages == ()
