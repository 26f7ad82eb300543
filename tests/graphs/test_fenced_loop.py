"""The tool loop and the solvers with a model that cannot call tools: its fenced blocks are its
calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from hrm_agent.cli.records.request_hints import known_from, states_of
from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.base import ExecutionResult, Submission
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.graphs.parts.prompts import FENCED_NOTE, TOOL_LOOP_PROMPT
from hrm_agent.graphs.reasoning.agent import ReasoningContext
from hrm_agent.graphs.tool_loop import Budget
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.forest import path_tokens, paths
from hrm_agent.trajectory.formats import export_to
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import TASK_PROMPT, Roles, boxed, call

TASK = TaskRef(id="1", family="test", prompt=TASK_PROMPT, answer="42")
FENCED = {"tool_format": "fenced"}


def block(code: str) -> str:
    return f"<reason>compute</reason>\n```python\n{code}\n```"


class Watched(LocalEnvironment):
    """Environment that keeps its submissions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Submission] = []

    async def run(self, submission: Submission) -> ExecutionResult:
        self.asked.append(submission)
        return await super().run(submission)


@pytest.fixture
async def watched() -> Any:
    opened = Watched()
    yield opened
    await opened.close()


async def run(
    script: Any,
    store: RunStore,
    environment: LocalEnvironment,
    graph: str = "tool_loop",
    **context: Any,
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        return await runner.run(
            Episode(TASK, "thread", graph=graph, context=FENCED | context, seed=1)
        )


async def test_a_block_is_run_and_its_result_comes_next(
    store: RunStore, environment: LocalEnvironment
) -> None:
    seen: list[Sequence[BaseMessage]] = []

    def script(messages: Sequence[BaseMessage]) -> str:
        seen.append(messages)
        return [block("x = 6"), block("x * 7"), boxed(42)][len(seen) - 1]

    trajectory = await run(script, store, environment)
    assert (trajectory.status, trajectory.stop_reason) == (RunStatus.COMPLETED, StopReason.ANSWER)
    assert [(c.name, c.status, c.value) for c in trajectory.tool_calls] == [
        ("python", ToolStatus.OK, None),
        ("python", ToolStatus.OK, "42"),
    ]
    assert [m.type for m in seen[2]] == ["system", "human", "ai", "human", "ai", "human"]
    assert seen[2][0].text == f"{TOOL_LOOP_PROMPT}\n{FENCED_NOTE}"
    assert seen[2][-1].text == "Result 1 (ok):\n```output\n42\n```"
    assert lint(trajectory) == []


async def test_its_tokens_are_one_conversation(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """Each call extends the one before token by token: nothing is rendered again."""
    with ScriptedEngine([block("6 * 7"), boxed(42)]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        trajectory = await runner.run(Episode(TASK, "thread", context=FENCED, seed=1))
        first, second = trajectory.calls
        assert (second.parent, second.branch_reason) == (first.id, None)
        (path,) = paths(trajectory.calls)
        sent = engine.requests[1]
        assert (
            path_tokens(path)[: len(sent.prompt_ids)]
            == sent.prompt_ids
            == tuple(engine.codec.encode(sent.messages))
        )
        asked, inserted = (
            first.token_ids,
            [t for t, own in zip(second.token_ids, second.mask, strict=True) if not own],
        )
        assert engine.codec.decode(
            [t for t, own in zip(asked, first.mask, strict=True) if own]
        ) == block("6 * 7")
        assert "Result 1 (ok):" in engine.codec.decode(inserted)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("<reason>x</reason>\n```python\nprint(6 * 7)", ToolStatus.INVALID_CALL),
        (call("6 * 7"), ToolStatus.INVALID_CALL),
        (block("6 * seven"), ToolStatus.ERROR),
    ],
    ids=["not closed", "a native call", "an error"],
)
async def test_what_fails_is_told(
    answer: str, status: ToolStatus, store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await run([answer, boxed(42)], store, environment)
    assert [c.status for c in trajectory.tool_calls] == [status]
    assert trajectory.status is RunStatus.COMPLETED and lint(trajectory) == []


async def test_a_block_beside_the_final_answer_is_not_run(
    store: RunStore, watched: Watched
) -> None:
    trajectory = await run([f"{block('6 * 7')}\n<answer>\\boxed{{41}}</answer>"], store, watched)
    assert (trajectory.stop_reason, watched.asked) == (StopReason.ANSWER, [])


async def test_natively_a_block_is_text(store: RunStore, watched: Watched) -> None:
    trajectory = await run([block("6 * 7")], store, watched, tool_format="native")
    assert (trajectory.stop_reason, watched.asked) == (StopReason.ANSWER, [])


async def test_a_run_that_stopped_goes_on_without_running_a_block_again(
    store: RunStore, watched: Watched
) -> None:
    def gone(messages: Sequence[BaseMessage]) -> str:
        if len(messages) == 2:
            return block("x = 6 * 7\nx")
        raise HrmError("The server is gone.", "Start it.")

    with pytest.raises(HrmError):
        await run(gone, store, watched)
    (first,) = store.journal.tool_calls()
    whole = await run(
        lambda messages: block("x + 1") if len(messages) == 4 else boxed(43), store, watched
    )
    assert whole.tool_calls[0] == first
    assert [asked.code for asked in watched.asked] == ["x = 6 * 7\nx", "x + 1"]
    assert whole.tool_calls[1].value == "43", "the session was rebuilt with the block before"
    assert whole.status is RunStatus.COMPLETED and lint(whole) == []


async def test_a_replay_finds_every_block(store: RunStore, watched: Watched) -> None:
    twice = "\n".join([block("6 * 7"), block("6 * 7")])
    await run([twice, boxed(42)], store, watched)
    watched.asked.clear()
    assert (await replay_async(store, "thread")).equal
    assert watched.asked == []


async def test_budgets_count_the_time_of_blocks(
    store: RunStore, environment: LocalEnvironment
) -> None:
    slow = block("import time\ntime.sleep(0.2)")
    trajectory = await run(lambda _: slow, store, environment, max_seconds=0.4)
    assert trajectory.stop_reason is StopReason.MAX_SECONDS, (
        "and not after the eight turns that it may take"
    )


async def test_a_conversation_is_exported_as_it_was_sent(
    store: RunStore, environment: LocalEnvironment, tmp_path: Path
) -> None:
    await run([block("6 * 7"), boxed(42)], store, environment)
    known = known_from(None, None, states_of(store.checkpointer))
    report = export_to(tmp_path / "x.jsonl", store.journal.trajectories(), "chat", known)
    row = json.loads((tmp_path / "x.jsonl").read_text())
    assert report.rows == 1 and "tools" not in row
    assert [m["role"] for m in row["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


async def test_solvers_write_blocks_too(store: RunStore, environment: LocalEnvironment) -> None:
    class Fenced(Roles):
        def __call__(self, messages: Sequence[BaseMessage]) -> str:
            turn = messages[0].model_copy(
                update={"content": messages[0].text.removesuffix(f"\n{FENCED_NOTE}")}
            )
            return super().__call__([turn, *messages[1:]])

        def solver(self, messages: Sequence[BaseMessage]) -> str:
            if messages[-1].text.startswith("Result"):
                return boxed(messages[-1].text.splitlines()[2])
            asked = json.loads(
                super().solver(messages).partition("<tool_call>")[2].partition("</tool_call>")[0]
            )
            return block(asked["arguments"]["code"])

    trajectory = await run(Fenced(), store, environment, graph="reasoning")
    assert trajectory.answer == "Answer: 42" and len(trajectory.tool_calls) == 3
    assert {c.status for c in trajectory.tool_calls} == {ToolStatus.OK} and lint(trajectory) == []
    assert (await replay_async(store, "thread")).equal


@pytest.mark.parametrize("context", [Budget, ReasoningContext])
def test_another_format_is_refused(context: Any) -> None:
    with pytest.raises(ConfigError, match="tool_format is 'json'") as refused:
        context(tool_format="json")
    assert "native or fenced" in str(refused.value.hint)
