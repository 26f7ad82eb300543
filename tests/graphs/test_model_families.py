"""Whole agents on models of many families: a scripted model answers in its family's own syntax.

What comes of an answer is the same for all: the outcomes of its calls, what the model is shown of
one that cannot be read, one sequence of tokens for training, and an answer that no thought is part
of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import create_react_agent

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models import policy
from hrm_agent.models.chat import PolicyModel
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.tools import python
from hrm_agent.trajectory import Call, RunStatus, StopReason, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support import families
from tests.support.family_turns import BY_FAMILY, Turns
from tests.support.graphs.own_agent import multiply
from tests.support.graphs.scripts import Roles

pytestmark = pytest.mark.real_tokenizers

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?", answer="42")
FINAL = "It is \\boxed{42}."
ONE_EACH = {
    *(
        "gemma3",
        "deepseek_r1_distill",
        "qwen3",
        "nemotron_3_nano",
        "qwen3_5_nothink",
        "glm4moe",
        "gemma4_v5",
    ),
    *("lfm2", "lfm2_2_5_v2", "llama3_1", "gptoss", "muse_glimmer"),
}
"""Each form of calls, with each way of thinking."""

each_form = pytest.mark.parametrize(
    "name",
    [
        name if name in ONE_EACH else pytest.param(name, marks=pytest.mark.slow)
        for name in families.FAMILIES
    ],
)


def codec_of(name: str) -> ChatTemplateCodec:
    return ChatTemplateCodec(families.load(name))


async def run(
    codec: ChatTemplateCodec,
    script: Any,
    store: RunStore,
    environment: LocalEnvironment,
    graph: Any = "tool_loop",
    **context: Any,
) -> Trajectory:
    with ScriptedEngine(script, codec=codec) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        return await runner.run(Episode(TASK, "thread", graph=graph, context=context, seed=1))


def sampled(call: Call) -> list[int]:
    return [token for token, own in zip(call.token_ids, call.mask, strict=True) if own]


def inserted(codec: ChatTemplateCodec, call: Call) -> str:
    """Text that the model was shown before it answered."""
    ids = [token for token, own in zip(call.token_ids, call.mask, strict=True) if not own]
    return codec.tokenizer.decode(ids, skip_special_tokens=False)


def is_shown(text: str, shown: str) -> bool:
    """True if the prompt contains the text, literally or as JSON spells it, in which a closing tag
    may be escaped.
    """
    return text in shown or json.dumps(text)[1:-1] in shown.replace("<\\/", "</")


def check_one_sequence(
    codec: ChatTemplateCodec, calls: Sequence[Call], script: Sequence[str]
) -> None:
    """Each answer extends the one before, and the mask marks what was sampled."""
    assert [call.parent for call in calls] == [None, *(call.id for call in calls[:-1])]
    assert [sampled(call) for call in calls] == [codec.encode_answer(answer) for answer in script]
    assert all(call.trainable for call in calls)


def thought(turns: Turns) -> str:
    """A thought that holds a call, where the family has thoughts."""
    return f"Not yet: {turns.form.malformed['broken']}" if turns.thoughts else ""


@each_form
async def test_calls_and_what_nobody_can_read(
    name: str, store: RunStore, environment: LocalEnvironment
) -> None:
    codec = codec_of(name)
    turns = BY_FAMILY[name]
    think = thought(turns)
    script = [turns.call("python", think, code="6 * 7")]
    script += [turns.malformed(kind, think) for kind in turns.form.malformed]
    script += [turns.call("shell", think, code="6 * 7"), turns.call("python", think, kode="6 * 7")]
    if turns.form.text != turns.form.value:  # the form says which values are strings
        script.append(turns.call("python", think, code=42))
    outcomes = [ToolStatus.OK] + [ToolStatus.INVALID_CALL] * (len(script) - 1)
    if turns.form.parallel:
        script.append(turns.calls("python", {"code": "1 + 1"}, {"code": "2 + 2"}, think=think))
        outcomes += [ToolStatus.OK] * 2
    script.append(turns.answer(FINAL, think))
    found = await run(codec, script, store, environment, max_turns=20, max_tokens=10**6)
    assert (found.status, found.stop_reason, found.error) == (
        RunStatus.COMPLETED,
        StopReason.ANSWER,
        None,
    )
    assert [call.status for call in found.tool_calls] == outcomes
    values = [call.value for call in found.tool_calls if call.status is ToolStatus.OK]
    assert values == ["42", "2", "4"][: outcomes.count(ToolStatus.OK)]
    assert found.answer == FINAL and lint(found) == []
    check_one_sequence(codec, found.calls, script)
    for call, before in zip(found.tool_calls, found.calls[1:], strict=False):
        assert is_shown(call.content, inserted(codec, before)), "the model is shown the reason"
    for call in found.calls:
        assert call.response["additional_kwargs"].get("reasoning_content") == (think or None)


@each_form
async def test_words_and_calls_of_all_kinds_in_one_answer(
    name: str, store: RunStore, environment: LocalEnvironment
) -> None:
    codec = codec_of(name)
    turns = BY_FAMILY[name]
    think = "Two things to do." if turns.thoughts else ""
    first = turns.both("Let me see.", "python", think, code="6 * 7")
    script = [first, turns.answer(FINAL, think)]
    found = await run(codec, script, store, environment)
    assert sorted(call.status for call in found.tool_calls if call.status) == [
        ToolStatus.INVALID_CALL,
        ToolStatus.OK,
    ]
    assert found.calls[0].response["content"].strip() == ("Let me see." if turns.form.words else "")
    assert found.answer == FINAL and lint(found) == []
    check_one_sequence(codec, found.calls, script)
    for call in found.tool_calls:
        assert is_shown(call.content, inserted(codec, found.calls[1]))


class FamilyRoles(Roles):
    """The four roles, each as the family writes."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns
        self.think = "So be it." if turns.thoughts else ""

    def planner(self, messages: Sequence[BaseMessage]) -> str:
        return self.turns.answer(super().planner(messages), self.think)

    def solver(self, messages: Sequence[BaseMessage]) -> str:
        if messages[-1].type == "tool":
            return self.turns.answer(super().solver(messages), self.think)
        known = re.findall(r"^(\w+ = \d+)$", messages[-1].text, re.MULTILINE)
        goal = messages[-1].text.partition("Subgoal: ")[2].splitlines()[0]
        return self.turns.call("python", self.think, code="; ".join([*known, goal]))

    def critic(self, messages: Sequence[BaseMessage]) -> str:
        return self.turns.answer(super().critic(messages), self.think)

    def synthesizer(self, messages: Sequence[BaseMessage]) -> str:
        return self.turns.answer(super().synthesizer(messages), self.think)


@each_form
async def test_four_roles(name: str, store: RunStore, environment: LocalEnvironment) -> None:
    codec = codec_of(name)
    roles = FamilyRoles(BY_FAMILY[name])
    found = await run(codec, roles, store, environment, "reasoning")
    assert (found.status, found.answer, found.error) == (RunStatus.COMPLETED, "Answer: 42", None)
    assert {call.status for call in found.tool_calls} == {ToolStatus.OK}
    first, second, last = (call.value for call in found.tool_calls)
    assert ({first, second}, last) == ({"12", "30"}, "42"), "the first two are parallel"
    assert roles.seen_by_critic == ["apples = 12\npears = 30\ntotal = 42"]
    assert lint(found) == []
    by_id = {call.id: call for call in found.calls}
    assert sum(call.parent in by_id for call in found.calls) == 3, (
        "each solver's answer extends its call"
    )


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@each_form
async def test_a_prebuilt_agent(name: str, store: RunStore, environment: LocalEnvironment) -> None:
    """LangGraph's own, whose tool node reports what does not fit."""
    codec = codec_of(name)
    turns = BY_FAMILY[name]
    think = thought(turns)
    agent = create_react_agent(policy(), [multiply])
    right, wrong = (turns.call("multiply", think, a=a, b=7) for a in (6, "six"))
    script = [wrong, turns.call("shell", think, code="ls"), right, turns.answer(FINAL, think)]
    found = await run(codec, script, store, environment, agent)
    assert (found.status, found.answer, found.error) == (RunStatus.COMPLETED, FINAL, None)
    assert [call.status for call in found.tool_calls] == [ToolStatus.ERROR, ToolStatus.OK]
    for call, problem in zip(
        found.calls[1:], ("valid integer", "not a valid tool", "42"), strict=True
    ):
        assert problem in inserted(codec, call)
    assert found.tool_calls[-1].content == "42" and lint(found) == []
    check_one_sequence(codec, found.calls, script)


@each_form
def test_a_streamed_answer_is_its_content(name: str) -> None:
    codec = codec_of(name)
    turns = BY_FAMILY[name]
    think = thought(turns)
    said = 'x to=5, then {"name": 1} <tool_cal [f(x=1)] <|en'
    answers = [
        turns.answer(said, think),
        turns.call("python", think, code="1"),
        turns.both("Well.", "python", think),
    ]
    asked = [SystemMessage("Be brief."), HumanMessage("What is 6 * 7?")]
    for answer in answers:
        with ScriptedEngine([answer, answer], codec=codec) as engine:
            model = PolicyModel(backend=engine).bind_tools([python])
            whole = model.invoke(asked)
            chunks = list(model.stream(asked))
        assert "".join(chunk.text for chunk in chunks) == whole.text
        decoder = codec.stream([convert_to_openai_tool(python)])
        shown = "".join(map(decoder.push, codec.encode_answer(answer))) + decoder.finish()
        assert whole.text.strip().startswith(shown.strip())
        assert bool(shown.strip()) == bool(whole.text.strip()), (
            "what there is to show is shown while it comes in"
        )
