"""Environments whose server this process starts: verifiers' bridge, in the place of which a process
answers with the messages of a real one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ModelError, TaskError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.rollout import group_episodes
from hrm_agent.training.tasks import load_tasks, run_verifier_of, verifier_of
from hrm_agent.trajectory import DropReason, ToolStatus, Trajectory
from tests.support.tools import bridge_stub


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Interpreter that runs the stub in the place of the script that it is given."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {bridge_stub.__file__} "$@"\n')
    script.chmod(0o755)
    return str(script)


def episode_of(python: str, query: str = "") -> Episode:
    tasks = load_tasks(
        f"verifiers:sums-env?python={python}{query}", split="eval", seed=0, count=None
    )
    assert len(tasks) == 3
    (task,) = [each for each in tasks if "1 + 2" in each.prompt]
    (episode,) = group_episodes([task], 1, run_id="r", stage="eval", seed=0, graph="tool_loop")
    return episode


def added(*numbers: int) -> str:
    asked = [{"name": "sums_add", "arguments": {"number": number}} for number in numbers]
    return "".join(f"<tool_call>{json.dumps(each)}</tool_call>" for each in asked)


async def run(
    store: RunStore, environment: LocalEnvironment, episode: Episode, *answers: str
) -> tuple[Trajectory, list[Sequence[BaseMessage]]]:
    """Run an episode with answers by their place in the conversation (empty: the model fails)."""
    seen: list[Sequence[BaseMessage]] = []

    def script(messages: Sequence[BaseMessage]) -> str:
        seen.append(messages)
        said = answers[sum(isinstance(message, AIMessage) for message in messages)]
        if not said:
            raise ModelError("The model is gone.")
        return said

    with ScriptedEngine(script) as engine:
        return await EpisodeRunner(store, engine, "scripted", environment).run(episode), seen


@pytest.mark.whole
async def test_a_taskset_is_played_by_whole_answers_and_taken_up_after_a_crash(
    store: RunStore, environment: LocalEnvironment, python: str
) -> None:
    episode = episode_of(python)
    with pytest.raises(ModelError):
        await run(store, environment, episode, added(1, 2), "")
    done, seen = await run(store, environment, episode, added(1, 2), "It is 3.")
    assert [message.type for message in seen[-1]] == ["system", "human", "ai", "tool", "tool"]
    assert [(each.name, each.content) for each in done.tool_calls] == [
        ("sums_add", "1"),
        ("sums_add", "3"),
        ("reply", "The episode is over."),
    ]
    assert done.rewards == {
        "correct": 1.0,
        "environment_return": 1.0,
        "environment_right": 1.0,
        "environment_used_the_tool": 1.0,
    }
    assert (await replay_async(store, done.thread_id)).equal
    verify = run_verifier_of(done.task)  # from the record alone
    assert verify is not None and verify(done) == done.rewards
    assert verifier_of(done.task) is None


@pytest.mark.whole
async def test_a_server_that_dies_is_a_fault_and_is_started_again(
    store: RunStore, environment: LocalEnvironment, python: str
) -> None:
    episode = episode_of(python, "&dies_at=2")
    done, _ = await run(store, environment, episode, added(1), added(2), "It is 3.")
    assert [each.status for each in done.tool_calls] == [ToolStatus.OK, ToolStatus.INFRASTRUCTURE]
    why = fault_of(done)
    assert why is not None and why[0] is DropReason.INFRASTRUCTURE and done.rewards == {}
    assert episode_of(python, "&dies_at=2").task.prompt == episode.task.prompt


@pytest.mark.whole
def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another interpreter gets no path of ours, as a worker process has one."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("HRM_AGENT_TOKEN", "secret")
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho "no$PYTHONPATH such$HRM_AGENT_TOKEN taskset" >&2\nexit 1\n')
    script.chmod(0o755)
    with pytest.raises(TaskError, match="no such taskset"):
        load_tasks(f"verifiers:sums-env?python={script}", split="eval", seed=0, count=1)
