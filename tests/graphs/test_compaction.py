"""Compaction: the model goes on from its own summary, and both sides of the break are one rollout."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.compaction import (
    SUMMARY,
    as_summary,
    compacted,
    is_due,
    summary_request,
    with_request,
)
from hrm_agent.graphs.parts.prompts import SUMMARY_NOTE, SUMMARY_PROMPT, TOOL_LOOP_PROMPT
from hrm_agent.graphs.tool_loop import Budget
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.batch import kept_rows
from hrm_agent.trajectory import StopReason, TaskRef, Trajectory, Verdict
from hrm_agent.trajectory.forest import training_roots
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import boxed, call

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7 * 2?", answer="84")


def conversation(*answers: str) -> list[Any]:
    """A task, and an exchange for each answer, with the ids that a graph would give."""
    found: list[Any] = [HumanMessage("task", id="h")]
    for number, text in enumerate(answers):
        usage = {"input_tokens": 50 * (number + 1), "output_tokens": 10}
        usage["total_tokens"] = sum(usage.values())
        found.append(AIMessage(text, id=f"a{number}", usage_metadata=usage))  # pyright: ignore[reportArgumentType]
        found.append(ToolMessage("result", tool_call_id=f"t{number}", id=f"r{number}"))
    return found


def test_a_summary_is_due_when_an_older_exchange_can_be_left_out() -> None:
    assert not is_due(conversation("one"), 10)
    assert is_due(conversation("one", "two"), 110) and not is_due(conversation("one", "two"), 111)
    assert not is_due(conversation("one", "two"), None)
    messages = conversation("one", "two")
    messages += [summary_request(messages), AIMessage("so far", id="s")]
    assert not is_due([*messages, AIMessage("three", id="a3")], 1)


def test_the_model_is_sent_the_task_with_the_summary_and_the_last_exchange() -> None:
    messages = conversation("one", "two", "three")
    assert compacted(messages) == messages
    request = summary_request(messages)
    assert (request.text, request.id) == (SUMMARY_PROMPT, f"r2{SUMMARY}")
    messages += [request, AIMessage("so far", id="s"), AIMessage("four", id="a3")]
    told, *rest = compacted(messages)
    assert told.text == f"task\n\n{SUMMARY_NOTE}\nso far"
    assert [each.id for each in rest] == ["a2", "r2", "a3"]
    messages += [HumanMessage("sent back", id="a3-own"), AIMessage("five", id="a4")]
    messages += [summary_request(messages), AIMessage("and now", id="s2")]
    told, *rest = compacted(messages, ("-own",))
    assert told.text == f"task\n\n{SUMMARY_NOTE}\nand now"
    assert [each.id for each in rest] == ["a4"]


async def run(
    script: Any, store: RunStore, environment: LocalEnvironment, **context: Any
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        return await runner.run(Episode(TASK, "thread", context=context, seed=1))


SCRIPT = [call("a = 6 * 7"), call("b = a * 2"), "a is 42, b is a * 2", call("b"), boxed(84)]


async def test_both_sides_of_the_break_are_one_rollout_of_two_sequences(
    store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run(SCRIPT, store, environment, compact_at=1, max_turns=5)
    assert trajectory.answer == boxed(84) and trajectory.stop_reason is StopReason.ANSWER
    assert [c.identity.node for c in trajectory.calls] == [
        *("reason", "reason", "compact", "reason", "reason"),
    ]
    assert lint(trajectory) == []
    assert len(training_roots(trajectory)) == 2
    after = store.journal.find_call(trajectory.calls[3].id)
    assert after is not None
    system, task, *rest = [str(message.get("content")) for message in after.request]
    assert system.startswith(TOOL_LOOP_PROMPT[:20]) and "a is 42, b is a * 2" in task
    assert len(rest) == 2, "the last exchange"
    (overlay,) = select([trajectory], 2, "grpo", seed=0)
    kept = overlay.model_copy(update={"verdict": Verdict.KEPT, "advantage": 0.5})
    rows = kept_rows([trajectory], [kept])
    trained = Counter(
        (id_, weight)
        for row in rows
        for id_, weight in zip(row.token_ids, row.weights, strict=True)
        if weight
    )
    assert sum(trained.values()) == sum(c.sampled_tokens for c in trajectory.calls)
    assert {weight for _, weight in trained} == {0.5}
    assert (await replay_async(store, "thread")).equal


@pytest.mark.parametrize(("turns", "nodes"), [(3, ["reason"]), (4, ["compact", "reason"])])
async def test_a_summary_counts_as_an_answer_and_is_not_the_last_one(
    turns: int, nodes: list[str], store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run(SCRIPT, store, environment, compact_at=1, max_turns=turns)
    assert trajectory.stop_reason is (StopReason.MAX_TURNS if turns == 4 else StopReason.ANSWER)
    assert [c.identity.node for c in trajectory.calls] == ["reason", "reason", *nodes]


def test_an_empty_summary_leaves_nothing_out_and_images_stay() -> None:
    messages = conversation("one", "two")
    asked = [*messages, summary_request(messages), AIMessage("", id="s")]
    assert compacted([*asked, AIMessage("three", id="a3")])[:-1] == messages
    assert compacted([AIMessage("alone", id="a"), *asked[-2:]]) == [AIMessage("alone", id="a")]
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    messages[0] = HumanMessage([{"type": "text", "text": "task"}, picture], id="h")
    told = compacted([*messages, summary_request(messages), AIMessage("so far", id="s")])[0]
    assert told.content[1] == picture and "so far" in str(told.content[2])


def test_a_summary_calls_no_tool_and_is_asked_for_in_the_persons_last_message() -> None:
    called = AIMessage("s", id="s", tool_calls=[{"name": "python", "args": {}, "id": "t"}])
    assert as_summary(called).tool_calls == [] and as_summary(called).id == "s"
    request = summary_request(conversation("one"))
    (last,) = with_request([HumanMessage("results", id="r")], request)
    assert last.text == f"results\n\n{SUMMARY_PROMPT}"


def test_an_invalid_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="compact_at is 0"):
        Budget(compact_at=0)
