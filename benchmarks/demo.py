"""Cost of a recorded rollout, compared with the same loop from stock parts and with bare sampling.

    python -m benchmarks.demo [--problems 256] [--repeats 3] [--json FILE]
    python -m benchmarks.demo --full [--json FILE]

Three ways to answer the same word problems with the same weights on the same engine, one after
another, repeated:

* `floor`: the prompts that the recorded calls saw, sampled again by the engine alone: no graph,
  tool, store, record.
* `ours`: tool loop, sandbox, checkpoints and journal, as in training.
* `stock`: the same loop as a user would put it together: LangGraph with its `AsyncSqliteSaver`, a
  chat model that renders the whole conversation at every turn and keeps no tokens, and `python -I`
  as the tool. Nothing is recorded that could be trained on, and nothing is isolated.

CPU seconds are of the process and its children. `--full` times the whole demo instead: wall clock,
CPU seconds by phase, peak memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from rich.console import Console
from rich.table import Table

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT
from hrm_agent.models import GenerationRequest, load_policy
from hrm_agent.store import open_store
from hrm_agent.tools import python
from hrm_agent.training.config.commands import CollectConfig, DemoConfig
from hrm_agent.training.demo import demo
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.tasks import load_tasks
from hrm_agent.trajectory import Sampling

POLICY = "builtin:cold-start"
MAX_TOKENS = 256
Row = dict[str, Any]


def cpu_seconds() -> float:
    """CPU seconds of this process and its children, including ended children."""
    process = psutil.Process()
    family = [process, *process.children(recursive=True)]
    return sum(sum(member.cpu_times()[:4]) for member in family if member.is_running())


async def timed(way: str, problems: int, work: Callable[[], Awaitable[Any]]) -> Row:
    wall, cpu = time.perf_counter(), cpu_seconds()
    await work()
    return {
        "way": way,
        "ms_cpu": (cpu_seconds() - cpu) / problems * 1e3,
        "s_wall": time.perf_counter() - wall,
    }


async def ours(problems: int, folder: Path) -> None:
    config = CollectConfig(policy=POLICY, count=problems, max_tokens=MAX_TOKENS)
    await collect(config, folder, backend=load_policy(POLICY))


async def floor(folder: Path) -> None:
    """Sample the model calls of a run turn by turn, without anything between them."""
    engine: Any = load_policy(POLICY)
    with open_store(folder) as store:
        calls = [call for trajectory in store.journal.trajectories() for call in trajectory.calls]
        paths = {call.id: store.journal.path_tokens(call.id) for call in calls}
    turns: dict[bool, list[GenerationRequest]] = {True: [], False: []}
    for call in calls:
        prompt = paths[call.id][: -call.sampled_tokens]
        turns[call.parent is None].append(GenerationRequest(prompt, call.sampled_with))
    for requests in turns.values():
        await asyncio.gather(*(asyncio.wrap_future(engine.submit(request)) for request in requests))


class StockModel(BaseChatModel):
    """Chat model over the engine like usual adapters: text in, text out."""

    @property
    def _llm_type(self) -> str:
        return "stock"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        engine: Any = load_policy(POLICY)
        prompt = tuple(engine.codec.encode(messages, kwargs["tools"]))
        request = GenerationRequest(
            prompt, Sampling(max_tokens=MAX_TOKENS, seed=hash(prompt) & 2**62 - 1)
        )
        answer = await asyncio.wrap_future(engine.submit(request))
        parsed = engine.codec.parse(engine.codec.decode(answer.token_ids))
        calls: Any = [
            {**call, "id": str(i), "type": "tool_call"} for i, call in enumerate(parsed.tool_calls)
        ]
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(parsed.content, tool_calls=calls))]
        )


async def stock(problems: int, folder: Path) -> None:
    from langchain_core.utils.function_calling import convert_to_openai_tool

    model = StockModel().bind(tools=[convert_to_openai_tool(python)])
    gate = asyncio.Semaphore(4)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {
            "messages": [await model.ainvoke([SystemMessage(TOOL_LOOP_PROMPT), *state["messages"]])]
        }

    async def tools(state: MessagesState) -> dict[str, Any]:
        asked: Any = state["messages"][-1]
        return {
            "messages": [
                ToolMessage(await run_code(call), tool_call_id=call["id"])
                for call in asked.tool_calls
            ]
        }

    async def run_code(call: Any) -> str:
        code = f"import sys\nprint(eval({str(call['args'].get('code', ''))!r}))"
        async with gate:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            return (await process.communicate())[0].decode().strip().rpartition("\n")[2]

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", tools)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    async with AsyncSqliteSaver.from_conn_string(str(folder / "stock.db")) as saver:
        graph = builder.compile(checkpointer=saver)
        tasks = load_tasks("word_problems", split="eval", seed=0, count=problems)
        await asyncio.gather(
            *(
                graph.ainvoke(
                    {"messages": [HumanMessage(task.prompt)]},
                    {"configurable": {"thread_id": str(i)}, "recursion_limit": 20},
                )
                for i, task in enumerate(tasks)
            ),
            return_exceptions=True,
        )


async def compare(problems: int, repeats: int) -> list[Row]:
    """Medians over `repeats`, with the three ways in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await ours(problems, folder / "warm")
        found: list[Row] = []
        for i in range(repeats):
            found.append(
                await timed("ours", problems, lambda i=i: ours(problems, folder / f"run{i}"))
            )
            found.append(await timed("floor", problems, lambda i=i: floor(folder / f"run{i}")))
            (folder / f"stock{i}").mkdir()
            found.append(
                await timed("stock", problems, lambda i=i: stock(problems, folder / f"stock{i}"))
            )
    return [
        {
            "way": way,
            **{
                k: statistics.median(r[k] for r in found if r["way"] == way)
                for k in ("ms_cpu", "s_wall")
            },
        }
        for way in ("floor", "ours", "stock")
    ]


async def whole() -> Row:
    """Measure the whole demo from the shipped cold start."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    with tempfile.TemporaryDirectory() as name:
        report = await demo(DemoConfig(), Path(name) / "demo")
    return {
        "minutes_wall": (time.perf_counter() - wall) / 60,
        "cpu_seconds": cpu_seconds() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "before": report.before["pass_at_1"],
        "after": report.after["pass_at_1"],
        "tool_errors_before": report.before["correct_with_tool_error"],
        "tool_errors_after": report.after["correct_with_tool_error"],
        **{f"{phase}_cpu_seconds": seconds for phase, seconds in report.cpu_seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a recorded rollout, or of the whole demo")
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="time the whole demo")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    rows = (
        [asyncio.run(whole())]
        if arguments.full
        else asyncio.run(compare(arguments.problems, arguments.repeats))
    )
    table = Table(*rows[0])
    for row in rows:
        table.add_row(
            *(value if isinstance(value, str) else f"{value:,.3f}" for value in row.values())
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
