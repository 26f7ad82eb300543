"""Answers of any content end in a typed outcome of their own rollout, and leave the next one
unaffected.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from transformers import AutoTokenizer

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.hostile_answers import REFUSALS, calling, hostile_answer, quoting, reading

ENDS = {
    (RunStatus.COMPLETED, StopReason.ANSWER),
    (RunStatus.FAILED, StopReason.UNUSABLE_ANSWER),
    (RunStatus.TRUNCATED, StopReason.RECURSION_LIMIT),
    (RunStatus.TRUNCATED, StopReason.MAX_TOKENS),
}
GRAPHS = (calling, reading, quoting)


def codecs() -> list[ChatTemplateCodec]:
    """The small policy's, with its own template and with those that refuse."""
    found: list[ChatTemplateCodec] = []
    for refusal in ("", *REFUSALS):
        tokenizer: Any = AutoTokenizer.from_pretrained(model_folder("builtin:cold-start"))
        here = "message.role == 'assistant' -%}"
        tokenizer.chat_template = tokenizer.chat_template.replace(here, here + refusal)
        found.append(ChatTemplateCodec(tokenizer))
    return found


@pytest.mark.parametrize(("cases", "seed"), [(40, 0), pytest.param(300, 1, marks=pytest.mark.slow)])
def test_every_answer_has_a_typed_end(
    cases: int, seed: int, store: RunStore, environment: LocalEnvironment
) -> None:
    rng, known, ends = random.Random(seed), codecs(), Counter[Any]()
    for number in range(cases):
        graph, codec = rng.choice(GRAPHS), rng.choice(known)
        answers = [hostile_answer(rng), hostile_answer(rng), *["fine"] * 200]
        found = asyncio.run(rollout(graph, codec, answers, f"t{number}", store, environment))
        ends[end := (found.status, found.stop_reason)] += 1
        assert end in ENDS, (number, answers[:2], found.error)
        assert store.journal.trajectory(found.thread_id) == found
        assert lint(found) == [], (number, answers[:2])
    assert len(ends) > 1
    for number, codec in enumerate(known):
        after = asyncio.run(
            rollout(calling, codec, ["fine"], f"after-{number}", store, environment)
        )
        assert (after.status, after.answer) == (RunStatus.COMPLETED, "fine")


async def rollout(
    graph: Any,
    codec: ChatTemplateCodec,
    answers: list[str],
    thread: str,
    store: RunStore,
    environment: LocalEnvironment,
) -> Trajectory:
    with ScriptedEngine(answers, codec=codec) as engine:
        runner = EpisodeRunner(
            store, engine, "scripted", environment, repeats_errors=True, durability="calls"
        )
        task = TaskRef(id="1", family="test", prompt="What is 6 * 7?")
        return await runner.run(
            Episode(task, thread, graph=graph, verify=lambda text: float(text == "42"))
        )
