"""Conversation with the research agent, and time travel through this conversation when its wiki is
gone, in two processes:

    python -m examples.research_time_travel talk
    python -m examples.research_time_travel travel

Without an argument both run, one after the other. The first process starts a small wiki, asks two
questions about it, and ends together with the wiki. The second process has only the record. It
shows the history, and replays it without a model or a wiki. It changes the first question at the
moment before the answer was written, and continues from there; the recorded sources are enough for
this. Last, it searches again, which would need the wiki: the agent gets an error that the wiki is
unreachable, and reports it. These commands do the same:

    hrm-agent history whales --store runs/research_time_travel.db
    hrm-agent replay whales --store runs/research_time_travel.db
    hrm-agent show whales --sources --store runs/research_time_travel.db

A script plays the model, so that the example runs anywhere, in some 10 seconds. With a model and
Wikipedia, have such a conversation by `hrm-agent chat --graph research` with `--policy openai:gpt-5
--context wiki=en user_agent='NAME/1.0 (you@example.org)'`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import HrmError
from hrm_agent.graphs.parts.prompts import RESEARCH_PLANNER_PROMPT, SEARCHER_PROMPT
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.time_travel.fork import Edit, fork, history
from hrm_agent.store import open_store
from hrm_agent.tools.local_wiki import LocalWiki
from hrm_agent.trajectory import Sampling, TaskRef, Trajectory

STORE, PAGES, THREAD = "runs/research_time_travel.db", "runs/research_time_travel", "whales"
USER_AGENT = "hrm-agent-example/1.0 (you@example.org)"
WIKI = {
    "Blue whale": (
        "The blue whale is the largest animal. Reaching a length of 29.9 metres, it weighs 199"
        " tonnes.\n"
    ),
    "Krill": (
        "Krill are small crustaceans. They feed near the surface at night and sink into deeper"
        " water by day.\n"
    ),
}
FIRST, SECOND = "How long is a blue whale?", "And when do krill feed?"
IN_FEET = "How long is a blue whale, in feet?"


# The functions of this section play a model that can look things up.


def answers(messages: Sequence[BaseMessage]) -> str:
    """Script in place of a model, which plans one question, searches for a page, reads the page,
    and answers with a quote.
    """
    role, newest = messages[0].text, messages[-1].text.rpartition("Newest message: ")[2]
    if role == RESEARCH_PLANNER_PROMPT:
        at_hand = "Sources at hand: none" not in messages[-1].text and "krill" not in newest
        questions = [] if at_hand else [{"question": newest, "queries": []}]
        return json.dumps({"questions": questions, "ask": "", "reply": ""})
    if role == SEARCHER_PROMPT:
        return _searcher(messages)
    if "feet" in newest:
        return 'It is about 98 feet long [S1: "Reaching a length of 29.9 metres"].'
    if "krill" in newest and "They feed" in messages[-1].text:
        return 'They come up to feed [S2: "They feed near the surface at night"].'
    if "krill" not in newest and "29.9 metres" in messages[-1].text:
        return 'It is almost 30 metres long [S1: "Reaching a length of 29.9 metres"].'
    return "NOT ANSWERED Nothing could be looked up."


def _searcher(messages: Sequence[BaseMessage]) -> str:
    page = "Krill" if "krill" in messages[1].text else "Blue whale"
    asked = [
        {"name": "wiki_search", "arguments": {"query": page}},
        {"name": "wiki_page", "arguments": {"title": page}},
    ]
    done = sum(message.type == "ai" for message in messages)
    if done < len(asked):
        return f"<tool_call>{json.dumps(asked[done])}</tool_call>"
    source = messages[-1].text.partition("<source ")[2].split()
    quote = (
        "They feed near the surface at night"
        if page == "Krill"
        else "Reaching a length of 29.9 metres"
    )
    return (
        f'It says so [{source[0]}: "{quote}"].'
        if source
        else f"I found nothing: {messages[-1].text}"
    )


# The functions of this section run in the first process.


async def talk(runner: EpisodeRunner) -> None:
    """Run two turns on one thread, over a wiki that exists only during this call."""
    with LocalWiki(_written()) as wiki:
        episode = _episode({"wiki": wiki.url, "user_agent": USER_AGENT})
        for turn in (await runner.run(episode), await runner.run(episode, say=SECOND)):
            show(turn)


def _written() -> Path:
    folder = Path(PAGES)
    folder.mkdir(parents=True, exist_ok=True)
    for title, text in WIKI.items():
        (folder / f"{title}.txt").write_text(text, encoding="utf-8")
    return folder


def _episode(context: dict[str, Any]) -> Episode:
    task = TaskRef(id=THREAD, family="examples", prompt=FIRST)
    return Episode(task, THREAD, graph="research", seed=1, context=context)


# The functions of this section run in the second process.


async def travel(runner: EpisodeRunner) -> None:
    """Show what can be done with the record alone, and what cannot."""
    store = runner.store
    for moment in history(store, THREAD).lineage():
        ran, then = ", ".join(moment.ran.nodes) or moment.source, ", ".join(moment.next) or "end"
        print(f"@{moment.index:3} {ran} -> {then}")

    found = await replay_async(store, THREAD)
    print(
        f"\nPlayed again, {found.checkpoints} checkpoints, {found.tasks} tasks:"
        f" {found.verdict.value}."
    )

    # The writer's sources are on record, so that this needs no wiki.
    (other,) = fork(store, THREAD, "before:write", edit=Edit(messages={0: IN_FEET}), seed=1)
    show(await runner.run(other), IN_FEET)
    show(await runner.run(other, say="How many feet was that?"))

    # A new search needs the wiki. That the wiki is missing is a normal result of a tool, and does
    # not end the run.
    (again,) = fork(store, THREAD, "before:search", seed=1)
    ended = await runner.run(again)
    show(ended)
    print(
        f"This needs the wiki: {ended.own_tool_calls[0].status}: {ended.own_tool_calls[0].content}"
    )


def show(trajectory: Trajectory, asked: str = "") -> None:
    """Print the last question, and its answer or error."""
    print(
        f"\n[{trajectory.thread_id}]"
        f" {asked or trajectory.prompts[-1]}\n{trajectory.error or trajectory.answer}"
    )


async def go(what: str) -> None:
    environment = LocalEnvironment()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(STORE, create=what == "talk"))
        engine = stack.enter_context(ScriptedEngine(answers))
        await {"talk": talk, "travel": travel}[what](
            EpisodeRunner(store, engine, "scripted", environment, Sampling(max_tokens=2048))
        )
        if what == "travel":
            print(f"\nThe model was asked {engine.calls} times.")
    await environment.close()


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="The research agent, and time travel through its conversation"
    )
    parser.add_argument(
        "what", nargs="?", choices=("talk", "travel"), help="the first part, or the second [both]"
    )
    what = parser.parse_args(words).what
    if what is None:
        for part in ("talk", "travel"):  # the second process never saw the wiki
            code = subprocess.run(
                [sys.executable, "-m", "examples.research_time_travel", part], check=False
            ).returncode
            if code:
                raise SystemExit(code)
        return
    try:
        asyncio.run(go(what))
    except HrmError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
