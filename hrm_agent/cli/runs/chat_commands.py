"""Slash commands of a chat. They inspect a conversation, or continue it in another way.

For scripts, `hrm-agent` has the same commands: `history`, `fork`, `diff`, `show --sources`,
`replay`, `resume`. `chat --thread T --say TEXT` continues without a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from hrm_agent.cli.common.citations_view import cited_lines, source_data, source_lines
from hrm_agent.cli.common.formatting import ends_of, turn_lines
from hrm_agent.cli.common.tree import facts_of, outcome_of
from hrm_agent.cli.runs.chat_session import ChatSession
from hrm_agent.cli.runs.diff import show_difference
from hrm_agent.cli.runs.replay import in_words
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.runtime.replay.request_diff import request_diff
from hrm_agent.runtime.time_travel.fork import History, Moment, thread_diff
from hrm_agent.runtime.time_travel.moment_data import moment_data

__all__ = ["COMMANDS", "GoOn", "Leave", "obey"]


class Leave(Exception):  # this ends the conversation and is not an error
    """The user ends the conversation."""


def obey(session: ChatSession, line: str) -> None:
    """Run a slash command. Raises `HrmError` if it is invalid or fails."""
    name, *words = line.split()
    if name not in COMMANDS:
        raise ConfigError(
            f"There is no command {name!r}.", nearest(name, COMMANDS) or "/help lists the commands."
        )
    usage, _, do = COMMANDS[name]
    most = usage.count("[")
    if len(words) > most:
        raise ConfigError(
            f"{name} takes {most or 'no'} word{'s' * (most > 1)}: {usage}.", "/help says more."
        )
    do(session, *words)


def _help(session: ChatSession) -> None:
    output = session.screen.output
    output.result(
        {"event": "help", "commands": {usage: text for usage, text, _ in COMMANDS.values()}}
    )
    for usage, text, _ in COMMANDS.values():
        output.say(f"  {usage:20} {text}")
    output.say(
        "Anything else is sent to the agent; begin with // to send a line that begins with a slash."
    )


def _history(session: ChatSession) -> None:
    found = session.history()
    output = session.screen.output
    output.result(
        {
            "event": "history",
            "thread": found.thread_id,
            "moments": [moment_data(m) for m in found.lineage()],
        }
    )
    for text, style in _moment_lines(found):
        output.say(text, style=style)


def _moment_lines(found: History) -> Iterator[tuple[str, str]]:
    """Lines of the path to the current moment, turn by turn. Each line has a moment, the nodes that
    ran before it, and the next nodes.
    """
    line = found.lineage()
    number = 0
    prompts = found.trajectory.prompts if found.trajectory is not None else ()
    back = sum(moment.source == "input" for moment in line)
    for moment in line:
        if moment.source == "input":
            said = prompts[number] if number < len(prompts) else ""
            yield (
                (
                    f"turn {number + 1}  {' '.join(said.split())[:100]}  (/back {back - number}"
                    " goes back to before it)"
                ),
                "bold",
            )
            number += 1
        ran = ", ".join(dict.fromkeys(moment.ran.nodes)) or moment.source
        then = f"-> {', '.join(dict.fromkeys(moment.next))}" if moment.next else "end"
        yield (
            "  ".join(
                part
                for part in (f"  @{moment.index:<4}", f"{ran:16}", facts_of(moment.ran), then)
                if part
            ),
            "",
        )
    for branch in found.branches:
        at = next((moment.index for moment in line if moment.checkpoint_id == branch.at), "?")
        yield (
            f"  fork at @{at}: {branch.history.thread_id}: {outcome_of(branch.history)[:80]}",
            "cyan",
        )


def _back(session: ChatSession, where: str = "") -> None:
    if not where:
        _history(session)
        where = session.screen.ask(
            "how many turns back, or @MOMENT, or before:NODE (Enter stays): "
        )
        if not where:
            return
    at = (
        session.turns_back(int(where))
        if where.isdecimal()
        else session.history().select(where.removeprefix("@"))
    )
    session.fork(at)
    _stands(session, at)


def _fork(session: ChatSession, name: str | None = None) -> None:
    at = session.history().last
    session.fork(at, name)
    _stands(session, at)


def _stands(session: ChatSession, at: Moment | None) -> None:
    output = session.screen.output
    output.result({"event": "stands", "thread": session.thread, "moment": at.index if at else None})
    if at is None:
        output.say(f"At the beginning, on the new thread {session.thread}.", style="bold")
        return
    before = (
        f", before {', '.join(dict.fromkeys(at.next))}; /resume continues from there"
        if at.next
        else ""
    )
    output.say(f"On the thread {session.thread}, at moment {at.index}{before}.", style="bold")


def _diff(session: ChatSession, a: str = "", b: str = "") -> None:
    found = session.history()
    if not a:
        origin = found.trajectory.forked_from if found.trajectory is not None else None
        left = (
            session.store.journal.find_trajectory(origin.trajectory_id)
            if origin is not None
            else None
        )
        before = session.turns_back(1)
        a = left.thread_id if left is not None else f"@{before.index if before is not None else 0}"
    sides = [_side(session, side) for side in (a, b or "@last")]
    show_difference(session.screen.output, thread_diff(session.store, *sides))


def _side(session: ChatSession, name: str) -> str:
    """Side of a diff: a moment of this thread, or another thread."""
    here = name.startswith("@") or name.isdecimal() or name.partition(":")[0] in ("before", "after")
    return f"{session.thread}@{name.removeprefix('@')}" if here else name


def _sources(session: ChatSession, number: str = "") -> None:
    output = session.screen.output
    values = session.values
    output.result({"event": "sources", **source_data(values)})
    for text, style in cited_lines(values, number) if number else source_lines(values):
        output.say(text, style=style)


def _threads(session: ChatSession, name: str | None = None) -> None:
    """List the newest conversations and runs. With `name`, switch to that thread."""
    store = session.store
    output = session.screen.output
    if name is not None:
        if name != session.thread and store.journal.find_trajectory(name) is None:
            known = [found.thread_id for found in store.threads()]
            raise RunError(
                f"There is no thread {name!r}. {nearest(name, known)}".strip(),
                "/threads lists them.",
            )
        session.stand_on(name)
        output.result({"event": "stands", "thread": session.thread, "moment": None})
        output.say(f"On the thread {session.thread}.", style="bold")
        return
    rows: list[tuple[Any, ...]] = []
    for info in islice((found for found in store.threads() if found.trajectory_id is not None), 30):
        known = store.journal.headers("id = ?", (info.trajectory_id,))[0]
        said = " ".join(known.prompts[-1].split())[:60]
        here = "*" if known.thread_id == session.thread else ""
        rows.append(
            (here, known.thread_id, known.graph, known.status.value, len(known.prompts), said)
        )
    columns = ("", "thread", "graph", "status", "turns", "said last")
    output.result(
        {
            "event": "threads",
            "threads": [dict(zip(columns[1:], row[1:], strict=True)) for row in rows],
        }
    )
    output.table(columns, rows)


def _replay(session: ChatSession) -> None:
    """Replay the thread from the record, and report if the graph gives the same result."""
    found = session.replay()
    output = session.screen.output
    lines = (
        request_diff(session.store, found.divergence.asked, found.divergence.nearest)
        if found.divergence
        else []
    )
    output.result(
        {
            "event": "replay",
            "verdict": found.verdict.value,
            "words": in_words(found),
            "difference": lines,
        }
    )
    for prompt, end in zip(found.trajectory.prompts, ends_of(found.trajectory), strict=True):
        for text, style in turn_lines(prompt, end):
            output.say(text, style=style)
    output.say(
        f"Replayed from the record, {found.checkpoints} moments: {in_words(found)}.", style="bold"
    )
    for line in lines:
        output.say(f"  {line}")


def _resume(session: ChatSession) -> None:
    if not session.can_resume:
        raise RunError("No turn is under way.", "Say something.")
    raise GoOn


class GoOn(Exception):  # not an error
    """The conversation continues with the interrupted turn."""


def _quit(session: ChatSession) -> None:
    del session
    raise Leave


COMMANDS: dict[str, tuple[str, str, Callable[..., None]]] = {
    "/history": ("/history", "turns and moments, with what ran and the next node", _history),
    "/back": (
        "/back [N]",
        "go back N turns, or to a moment: @3, before:NODE; your next message continues from there",
        _back,
    ),
    "/fork": ("/fork [NAME]", "continue from here on a new thread", _fork),
    "/diff": (
        "/diff [A] [B]",
        "compare two moments or threads; by default with the thread that this one was forked from",
        _diff,
    ),
    "/sources": (
        "/sources [N]",
        "what the answer cites; with a number, the cited span in its text",
        _sources,
    ),
    "/threads": (
        "/threads [NAME]",
        "list the threads of the store; with a name, switch to that thread",
        _threads,
    ),
    "/replay": ("/replay", "replay this thread from the record; no model is asked", _replay),
    "/resume": (
        "/resume",
        "resume a turn that stopped or failed, or continue from where /back went",
        _resume,
    ),
    "/help": ("/help", "this list", _help),
    "/quit": (
        "/quit",
        "leave (also Ctrl-D); all is saved, and `chat --thread` continues it",
        _quit,
    ),
}
"""Slash commands with usage, description and function."""
