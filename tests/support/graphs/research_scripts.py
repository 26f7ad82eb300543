"""A scripted policy for the research graph, and a way to talk with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.parts.prompts import RESEARCH_PLANNER_PROMPT, SEARCHER_PROMPT, WRITER_PROMPT
from hrm_agent.graphs.research.agent import build_research
from hrm_agent.models.codec.calls.hermes import parse_turn
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Sampling, TaskRef, Trajectory

AGENT = "tests/1.0 (tests@example.org)"
ASKED = "How long is a blue whale, and what do krill do at night?"
LENGTH, NIGHT = "How long is a blue whale?", "What do krill do at night?"


def tool(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def planned(*questions: str, **said: str) -> str:
    return json.dumps(
        {"questions": [{"question": question, "queries": []} for question in questions], **said}
    )


class Researcher:
    """Scripted policy: two questions, a search and a page for each question, and an answer that
    quotes both pages.
    """

    def __init__(self, **answers: Any) -> None:
        """`answers`: role -> its answer instead of the default: a text, several texts in turn (the
        last one is repeated), or a function.
        """
        self.seen: dict[str, list[str]] = {"planner": [], "searcher": [], "writer": []}
        """Role -> last message of each of its requests."""
        self.answers = answers

    def __call__(self, messages: Sequence[BaseMessage]) -> str:
        prompts = {
            RESEARCH_PLANNER_PROMPT: "planner",
            SEARCHER_PROMPT: "searcher",
            WRITER_PROMPT: "writer",
        }
        role = prompts[messages[0].text]
        self.seen[role].append(messages[-1].text)
        said = self.answers.get(role, getattr(self, role))
        if isinstance(said, (list, tuple)):
            said = said[min(len(self.seen[role]), len(said)) - 1]
        return said(messages) if callable(said) else said

    def planner(self, messages: Sequence[BaseMessage]) -> str:
        return planned(LENGTH, NIGHT)

    def searcher(self, messages: Sequence[BaseMessage]) -> str:
        whale = LENGTH in messages[1].text
        done = sum(message.type == "ai" for message in messages)
        if done == 0:
            return tool("wiki_search", query="largest animal" if whale else "krill night")
        if done == 1:
            return tool("wiki_page", title="Blue whale" if whale else "Krill")
        if "<source" not in messages[-1].text:
            return "I found nothing."
        name = messages[-1].text.partition("<source ")[2].split()[0]
        quote = "Reaching a length of 29.9 m" if whale else "feed near the surface at night"
        return f'This is what it says [{name}: "{quote}"].'

    def writer(self, messages: Sequence[BaseMessage]) -> str:
        return (
            'It is 29.9 m long [S1: "Reaching a length of 29.9 m"].\n'
            'Krill come up at night [S2: "They feed near the surface at night"].'
        )


class Held(BaseChatModel):
    """A chat model that a graph holds itself, and that knows nothing of records."""

    @property
    def _llm_type(self) -> str:
        return "held"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=list(tools), **options)

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        said = parse_turn(Researcher()(messages))
        calls = [
            {**call, "id": f"call-{len(messages)}", "type": "tool_call"} for call in said.tool_calls
        ]
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(said.content, tool_calls=calls))]
        )


held = build_research(Held())


class Talk:
    """One thread of the research graph, turn after turn."""

    graph = "research"

    def __init__(
        self,
        store: RunStore,
        environment: LocalEnvironment,
        script: Any,
        thread: str = "talk",
        **context: Any,
    ) -> None:
        self.store, self.thread, self.context = store, thread, context
        self.engine = script if hasattr(script, "submit") else ScriptedEngine(script)
        self.runner = EpisodeRunner(
            store, self.engine, "scripted", environment, Sampling(max_tokens=2**14)
        )
        self.heard: list[tuple[str, str]] = []
        """Pieces of answers, with the node that they come from."""
        self.updates: list[str] = []
        self.events: list[dict[str, Any]] = []

    async def __call__(self, said: str = ASKED, **context: Any) -> Trajectory:
        known = self.store.journal.find_trajectory(self.thread)
        first = said if known is None else known.task.prompt
        task = TaskRef(id="1", family="test", prompt=first)
        episode = Episode(
            task, self.thread, graph=self.graph, context=self.context | context, seed=1
        )
        return await self.runner.run(episode, say=said if known is not None else None)

    async def listened(self, said: str = ASKED) -> Trajectory:
        """Run the first turn and collect its stream, as a terminal does."""
        episode = Episode(
            TaskRef(id="1", family="test", prompt=said),
            self.thread,
            graph=self.graph,
            context=self.context,
        )
        return await self.runner.run(
            episode,
            lambda _, update: self.updates.extend(update),
            on_chunk=lambda _, node, chunk: self.heard.append((node, chunk.text)),
            on_event=lambda _, event: self.events.append(event),
        )

    async def resumed(self) -> Trajectory:
        """Run a turn that was cut short to its end."""
        known = self.store.journal.find_trajectory(self.thread)
        assert known is not None
        episode = Episode(known.task, self.thread, graph=self.graph, context=self.context, seed=1)
        return await self.runner.run(episode)

    @property
    def state(self) -> Mapping[str, Any]:
        found = self.store.checkpointer.get_tuple(
            {"configurable": {"thread_id": self.thread, "checkpoint_ns": ""}}
        )
        assert found is not None
        return found.checkpoint["channel_values"]

    def close(self) -> None:
        self.engine.close()


def assert_exact(state: Mapping[str, Any]) -> None:
    """Assert that each citation is in its source, to the character."""
    for cited in state["citations"]:
        source = state["sources"][cited["source"]]
        assert source["text"][cited["start"] : cited["end"]] == cited["quote"]
        assert cited["url"] == source["url"]
