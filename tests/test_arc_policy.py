"""The lessons of `benchmarks/arc_policy.py` are what a rollout meets, and its puzzles have one
answer.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage

from benchmarks.arc_policy import CONTEXT, RULES, lesson, puzzles, tasks
from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.training.small_policy.cold_start import answer_text
from hrm_agent.trajectory.lint import lint


async def test_a_lesson_is_a_run(store: RunStore, environment: LocalEnvironment) -> None:
    """Answers of a lesson, played by a script, get exactly the results that it shows, and the
    expected reward.
    """
    rng, held_out = random.Random(1), tasks("eval", 0, 12)
    correct: list[float] = []
    for task, (rule, data) in zip(held_out, puzzles("eval", 0), strict=False):
        shown = lesson(rule, data, rng)
        said = [message for message in shown.messages if isinstance(message, AIMessage)]
        requests: list[Any] = []
        with ScriptedEngine([answer_text(message) for message in said]) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            episode = Episode(task.ref(), task.id, context=CONTEXT, seed=0, verify=task.verify)
            trajectory = await runner.run(episode)
            requests += engine.requests[-1].messages
        results = [message.text for message in requests if isinstance(message, ToolMessage)]
        assert [m.text for m in shown.messages[:2]] == [m.text for m in requests[:2]]
        assert results == [
            message.text for message in shown.messages if isinstance(message, ToolMessage)
        ]
        assert lint(trajectory) == []
        correct.append(trajectory.reward)
    assert 0 < sum(correct) < len(correct), "some lessons guess"


def test_the_splits_share_no_puzzle_and_every_rule_comes() -> None:
    drawn = {split: list(islice(puzzles(split, 0), 200)) for split in ("train", "eval")}
    seen = {split: {str(data) for _, data in found} for split, found in drawn.items()}
    assert not seen["train"] & seen["eval"]
    assert {rule for rule, _ in drawn["eval"]} == RULES.keys()
