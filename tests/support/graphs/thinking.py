"""A conversation of the tool loop with a policy that thinks. The chat template drops thoughts of
earlier turns.
"""

from __future__ import annotations

import asyncio

from hrm_agent.environment import Environment
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.models.conftest import THINK_STRIPPING, make_tokenizer

__all__ = ["ANSWERS", "THOUGHTS", "thinking_codec", "thinking_run"]

THOUGHTS = ("Six sevens.\nI compute.", "The tool <b>says</b> so.", "More of it.")
_SAID = (
    '<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}</tool_call>',
    "It is 42.",
    "Sure.",
)
ANSWERS = tuple(
    f"<think>\n{thought}\n</think>\n\n{said}" for thought, said in zip(THOUGHTS, _SAID, strict=True)
)


def thinking_codec(*, keep: bool = False) -> ChatTemplateCodec:
    """`keep`: thoughts of earlier turns stay."""
    return ChatTemplateCodec(make_tokenizer(THINK_STRIPPING), keep_thoughts=keep)


def thinking_run(
    store: RunStore, environment: Environment, *, keep: bool = False, thread: str = "t"
) -> Trajectory:
    """Record two turns: a tool call and an answer, then one more answer."""

    async def run() -> Trajectory:
        with ScriptedEngine(ANSWERS, codec=thinking_codec(keep=keep)) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            task = TaskRef(id=thread, family="chat", prompt="What is 6 * 7?")
            episode = Episode(task, thread, graph="tool_loop")
            await runner.run(episode)
            return await runner.run(episode, say="Sure?")

    return asyncio.run(run())
