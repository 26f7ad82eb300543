"""LangGraph's calls of a checkpointer during a run, recorded once and replayed on each
checkpointer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

__all__ = [
    "Operation",
    "Recorder",
    "chat",
    "loop_graph",
    "record_chat",
    "record_loop",
    "replay",
    "replay_async",
]

Operation = tuple[str, tuple[Any, ...]]
_WORDS = [
    f"{a}{b}{c}"
    for a in ("re", "un", "con", "pro")
    for b in ("for", "mis", "tin", "ver")
    for c in ("m", "se", "t")
]


class Recorder(InMemorySaver):
    """Saver that keeps what is written, with the channel versions that another checkpointer would
    give.
    """

    def __init__(self, versions: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self._versions = versions
        self.operations: list[Operation] = []

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._versions.get_next_version(current, channel)

    def put(self, *given: Any, **named: Any) -> Any:
        self.operations.append(("put", given))
        return super().put(*given, **named)

    def put_writes(self, *given: Any, **named: Any) -> None:
        self.operations.append(("put_writes", given))
        super().put_writes(*given, **named)


class Loop(TypedDict):
    n: int
    note: str


def loop_graph(steps: int) -> Any:
    """Graph of two alternating nodes, `steps` in all. Its state is as small as possible, so that
    the checkpointer takes most of the time.
    """

    def even(state: Loop) -> dict[str, Any]:
        return {
            "n": state["n"] + 1,
            "note": f"step {state['n']} of a loop that says a few words about itself" * 3,
        }

    async def even_async(state: Loop) -> dict[str, Any]:
        return even(state)

    node: Any = RunnableLambda(even, even_async)
    builder = StateGraph(Loop).add_node("one", node).add_node("two", node).add_edge(START, "one")
    for here, there in (("one", "two"), ("two", "one")):
        choose: Callable[[Loop], str] = lambda state, there=there: (  # noqa: E731
            END if state["n"] >= steps else there
        )
        builder.add_conditional_edges(here, choose, [there, END])
    return builder.compile()


def chat(
    messages: int, size: int, extra: Callable[[int], dict[str, Any]] = lambda _: {}
) -> list[AnyMessage]:
    """Conversation of `messages` messages of `size` characters."""
    rng = random.Random(messages)
    texts = [" ".join(rng.choices(_WORDS, k=size // 4))[:size] for _ in range(messages)]
    return [
        (
            AIMessage(text, id=f"m{i}", response_metadata=extra(i // 2))
            if i % 2
            else HumanMessage(text, id=f"m{i}")
        )
        for i, text in enumerate(texts)
    ]


def record_loop(versions: BaseCheckpointSaver[Any], steps: int) -> list[Operation]:
    return _recorded(loop_graph(steps), versions, {"n": 0, "note": ""}, steps)


def record_chat(versions: BaseCheckpointSaver[Any], said: Sequence[AnyMessage]) -> list[Operation]:
    """Record a step for each message, as an agent and its tools take turns."""

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [said[len(state["messages"])]]}

    def more(state: MessagesState) -> str:
        return "say" if len(state["messages"]) < len(said) else END

    builder = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say")
    builder.add_conditional_edges("say", more, ["say", END])
    return _recorded(builder.compile(), versions, {"messages": [said[0]]}, len(said))


def _recorded(
    graph: Any, versions: BaseCheckpointSaver[Any], given: Any, steps: int
) -> list[Operation]:
    recorder = Recorder(versions)
    graph = graph.copy(update={"checkpointer": recorder})
    graph.invoke(
        given,
        {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10},
        durability="sync",
    )
    return recorder.operations


def replay(saver: BaseCheckpointSaver[Any], operations: Sequence[Operation]) -> None:
    """Replay recorded operations on a checkpointer."""
    for name, given in operations:
        getattr(saver, name)(*given)


async def replay_async(saver: BaseCheckpointSaver[Any], operations: Sequence[Operation]) -> None:
    for name, given in operations:
        await getattr(saver, f"a{name}")(*given)
