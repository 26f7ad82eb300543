"""Acts of a policy in a task's environment: each is recorded, and none is sent twice.

An act is a tool call, or a whole answer where the environment takes answers. Its record holds what
was sent and what came back. So a replay needs no environment, and the return of an episode is read
from the record.

An episode is one session with the environment. If the session is gone (after a crash, or on
another branch of a run), a new one is begun with the same arguments, and the recorded acts are
sent again. Each response must equal the recorded one. If one differs, the environment does not
repeat itself, and the run ends as a fault of the infrastructure.

A record may come from anyone, and its environment names a program to start, or a server to ask. So
an environment is played only if this process has loaded its tasks (`allow_environment`), or if
`HRM_AGENT_TASK_ENVIRONMENT` names it.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict

from hrm_agent.errors import RunError
from hrm_agent.models import invalid_tool_calls
from hrm_agent.models.call_recording import recorded_call_id
from hrm_agent.tools.record_call import ToolOutcome, as_message, record_tool_call
from hrm_agent.tools.sessions import sessions_of
from hrm_agent.tools.task_environments.sessions import OpenSession, on_loop
from hrm_agent.tools.task_environments.source import parse_source
from hrm_agent.tools.task_environments.wire import ActRefusedError, EnvironmentFault, Observed
from hrm_agent.trajectory import (
    CheckpointLineage,
    GraphIdentity,
    Recording,
    ToolCall,
    ToolStatus,
    Trajectory,
    active_recording,
    content_hash,
    tool_record_id,
)
from hrm_agent.trajectory.identity import graph_identity

__all__ = [
    "OBSERVED",
    "Played",
    "TaskEnvironment",
    "acts_of",
    "allow_environment",
    "digest_of",
    "end_episodes",
    "play",
    "takes_replies",
]

OBSERVED = "-observed"
"""Suffix of the id of a message from an environment."""
REPLY = "reply"
"""Name of the recorded call of an answer that is an act."""
_ACT = "environment_act"
"""Key in the output of a recorded call that is an act."""
_LOST = "The environment failed; the policy is not to blame."
SECONDS_TO_END = 5.0
ALLOWING = "HRM_AGENT_TASK_ENVIRONMENT"
"""Environment variable that names an environment that records may name."""
_allowed: set[str] = set()


class TaskEnvironment(TypedDict):
    """Environment of a task, in the state of its graph."""

    source: str
    """Text that names the environment."""
    arguments: dict[str, Any]
    """Arguments of the reset, such as a seed."""
    tools: list[dict[str, Any]]
    """Tools in OpenAI's format, as the environment gave them when the task was loaded."""
    begin: str
    """Digest of the first observation, which every episode of the task must have."""


@dataclass(frozen=True, slots=True)
class Played:
    """Outcome of an answer in its environment."""

    messages: list[AnyMessage]
    """Messages for the policy."""
    over: bool
    """True if the episode has ended, or was lost."""


@dataclass(slots=True)
class _Episode:
    """Episode of one loop of a graph."""

    session: OpenSession | None = None
    """Session with the environment (None: not begun, or lost)."""
    acts: tuple[str, ...] = ()
    """Ids of the records of the acts that the session has taken."""


class _Episodes:
    """Episodes of one recording, by thread and scope."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str], _Episode] = {}


_episodes: WeakKeyDictionary[Recording, _Episodes] = WeakKeyDictionary()
_lock = threading.Lock()


def allow_environment(text: str) -> None:
    """Allow runs of this process to play in an environment, since a user has named it."""
    _allowed.add(text)


def takes_replies(environment: TaskEnvironment | None) -> bool:
    """True if each answer of the policy is an act, with or without tool calls."""
    return environment is not None and parse_source(environment["source"]).takes_replies


async def play(answer: AIMessage, environment: TaskEnvironment, config: RunnableConfig) -> Played:
    """Send what an answer does to the environment, act by act, until one ends the episode."""
    source = parse_source(environment["source"])
    act = _Act(environment, config)
    if source.takes_replies:
        return await _play_answer(answer, act, bridged=source.kind == "verifiers")
    messages: list[AnyMessage] = []
    over = False
    known = {tool["function"]["name"] for tool in environment["tools"]}
    for place, call in enumerate(answer.tool_calls):
        call_id = str(call["id"] or f"call_{place}")
        action = {"name": call["name"], "arguments": call["args"], "id": call_id}
        if over:
            refused = "The episode is over."
        elif call["name"] not in known:
            refused = f"Unknown tool {call['name']!r}. Known tools: {', '.join(sorted(known))}."
        else:
            refused = ""
        record = await act.take(call_id, call["name"], call["args"], action, refused)
        messages.append(as_message(record))
        over = over or _is_over(record)
    for place, call in enumerate(invalid_tool_calls(answer), start=len(messages)):
        call_id = str(call.get("id") or f"call_{place}")
        refused = f"Invalid tool call: {call.get('error') or 'it could not be decoded'}"
        record = await act.take(
            call_id, call.get("name") or "unknown", call.get("args") or "", {}, refused
        )
        messages.append(as_message(record))
    return Played(messages, over)


async def _play_answer(answer: AIMessage, act: _Act, *, bridged: bool) -> Played:
    """Send a whole answer. Its first tool call has the record of the act, else a call `reply`."""
    calls = [
        {
            "id": str(call["id"] or place),
            "name": call["name"],
            "arguments": json.dumps(call["args"]),
        }
        for place, call in enumerate(answer.tool_calls)
    ]
    calls += [
        {
            "id": str(call.get("id")),
            "name": call.get("name") or "",
            "arguments": call.get("args") or "",
        }
        for call in invalid_tool_calls(answer)
    ]
    action: dict[str, Any] = (
        {"message": {"content": answer.text, "tool_calls": calls}}
        if bridged
        else {"reply": answer.text}
    )
    if not calls or not bridged:
        own = f"{REPLY}-{recorded_call_id(answer) or answer.id}"
        refusals: list[AnyMessage] = []
        for call in calls:  # a chat template needs an answer to each
            refused = "This environment has no tools: the text of an answer is the action."
            record = await act.take(call["id"], call["name"], _arguments(call), {}, refused)
            refusals.append(as_message(record))
        played = _said(answer, await act.take(own, REPLY, {"text": answer.text}, action, ""))
        return Played([*refusals, *played.messages], played.over)
    first, *others = calls
    record = await act.take(first["id"], first["name"], _arguments(first), action, "")
    told: list[AnyMessage] = [as_message(record)]
    told += [as_message(await act.follow(record, call)) for call in others]
    played = _said(answer, record)
    return Played(
        [*told, *(m for m in played.messages if isinstance(m, HumanMessage))], played.over
    )


def _said(answer: AIMessage, record: ToolCall) -> Played:
    """Messages of a user in the response to an act."""
    said = (record.output or {}).get(_ACT, {}).get("messages", [])
    texts = [each["content"] for each in said if each["role"] == "user"]
    over = _is_over(record)
    if record.status is not ToolStatus.OK and not texts and not over:
        texts = [record.content]
    messages: list[AnyMessage] = [
        HumanMessage(text, id=f"{answer.id}{f'-{place}' if place else ''}{OBSERVED}")
        for place, text in enumerate(texts)
    ]
    return Played([] if over else messages, over)


def _arguments(call: Mapping[str, Any]) -> dict[str, Any] | str:
    try:
        given = json.loads(call["arguments"] or "{}")
    except ValueError:
        return str(call["arguments"])
    return cast("dict[str, Any]", given) if isinstance(given, dict) else str(call["arguments"])


def _is_over(record: ToolCall) -> bool:
    act = (record.output or {}).get(_ACT, {})
    return bool(act.get("done")) or record.status is ToolStatus.INFRASTRUCTURE


class _Act:
    """Acts of one step of a graph."""

    def __init__(self, environment: TaskEnvironment, config: RunnableConfig) -> None:
        self._environment = environment
        self._config = config
        self._recording = active_recording()
        with _lock:
            self._episodes = _episodes.setdefault(self._recording, _Episodes())

    async def take(
        self,
        call_id: str,
        name: str,
        arguments: dict[str, Any] | str,
        action: Mapping[str, Any],
        refused: str,
    ) -> ToolCall:
        """Record of an act, which is sent unless it is on record. `refused`: reason why it is not
        sent (empty: it is sent).
        """
        identity = graph_identity(self._config.get("metadata"), call_id)
        own = tool_record_id(identity.thread_id, identity.task_id, call_id)

        async def execute() -> ToolOutcome:
            if refused:
                return ToolOutcome(ToolStatus.INVALID_CALL, refused, duration_seconds=0.0)
            return await self._execute(identity, own, action)

        return await record_tool_call(
            tool_call_id=call_id,
            name=name,
            arguments=arguments,
            config=self._config,
            execute=execute,
        )

    async def follow(self, act: ToolCall, call: Mapping[str, Any]) -> ToolCall:
        """Record of a further tool call of an answer whose act is on record."""
        said = (act.output or {}).get(_ACT, {}).get("messages", [])
        text = next((m["content"] for m in said if m.get("tool_call_id") == call["id"]), None)
        lost = act.status is ToolStatus.INFRASTRUCTURE

        async def execute() -> ToolOutcome:
            if lost:
                return ToolOutcome(ToolStatus.INFRASTRUCTURE, _LOST, duration_seconds=0.0)
            return ToolOutcome(ToolStatus.OK, text or "", duration_seconds=0.0)

        return await record_tool_call(
            tool_call_id=call["id"],
            name=call["name"],
            arguments=_arguments(call),
            config=self._config,
            execute=execute,
        )

    async def _execute(
        self, identity: GraphIdentity, own: str, action: Mapping[str, Any]
    ) -> ToolOutcome:
        place = identity.thread_id, identity.scope
        episode = self._episodes.by_place.setdefault(place, _Episode())
        try:
            before = await self._before(identity)
            if any(record.status is ToolStatus.INFRASTRUCTURE for record in before):
                raise EnvironmentFault("An earlier act of the episode was lost.")
            acts = tuple(record.id for record in before)
            if episode.session is None or episode.acts != acts:
                await self._begin_again(episode, before)
            session = episode.session
            assert session is not None
            began = time.perf_counter()
            try:
                seen = await on_loop(session.act(action))
            except ActRefusedError as error:
                return ToolOutcome(
                    ToolStatus.INVALID_CALL,
                    f"Invalid action: {error}",
                    duration_seconds=time.perf_counter() - began,
                )
            episode.acts = (*acts, own)
            return _outcome(seen, action, session, len(acts), time.perf_counter() - began)
        except EnvironmentFault as error:
            await _drop(episode)
            output = {_ACT: {"lost": str(error)}}
            return ToolOutcome(
                ToolStatus.INFRASTRUCTURE, f"{_LOST} {error}", output=output, stderr=str(error)
            )
        except BaseException:  # what the environment has done is unknown
            await _drop(episode)
            raise

    async def _begin_again(self, episode: _Episode, before: Sequence[ToolCall]) -> None:
        """Begin the episode in a new session, and send the recorded acts again."""
        await _drop(episode)
        named = self._environment["source"]
        if named not in _allowed and os.environ.get(ALLOWING) != named:
            raise RunError(
                f"The run is played in {named!r}, which its record names and no option of this"
                " command.",
                f"It starts a program or asks a server. If you trust it, set {ALLOWING} to this"
                " text.",
            )
        session = OpenSession(parse_source(named))
        episode.session = session
        episode.acts = ()
        seen = await on_loop(session.reset(self._environment["arguments"]))
        if digest_of(seen) != self._environment["begin"]:
            raise EnvironmentFault(
                "The environment began with another observation than when the task was loaded."
            )
        for number, record in enumerate(before, start=1):
            known = (record.output or {})[_ACT]
            try:
                again = _recorded(await on_loop(session.act(known["sent"])), session)
            except ActRefusedError as error:
                again = {"refused": str(error)}
            if any(again.get(name) != known[name] for name in ("messages", "reward", "done")):
                raise EnvironmentFault(
                    f"The environment was begun again, and act {number} came out differently."
                )
        episode.acts = tuple(record.id for record in before)

    async def _before(self, identity: GraphIdentity) -> list[ToolCall]:
        """Finished acts that led to the current step, in order."""
        recording = self._recording
        line = await sessions_of(recording).line(recording, identity)
        return await recording.apart(_acts_before, recording, identity, line)


def _acts_before(
    recording: Recording, identity: GraphIdentity, line: CheckpointLineage
) -> list[ToolCall]:
    journal = recording.journal
    thread = identity.thread_id
    scope = identity.scope
    inner = journal.line(thread, scope, identity.checkpoint_id) if scope else line
    found: list[ToolCall] = []
    for record_id, step in journal.steps_of_tool_calls(thread):
        if line.place(step) is None:
            continue
        record = journal.find_tool_call(record_id, thread)
        if (
            record is not None
            and record.status is not None
            and _ACT in (record.output or {})
            and record.identity.scope == scope
            and inner.place(record.identity.checkpoint_id) is not None
        ):
            found.append(record)
    return sorted(found, key=lambda record: (record.output or {})[_ACT].get("number", 0))


def _outcome(
    seen: Observed, action: Mapping[str, Any], session: OpenSession, before: int, seconds: float
) -> ToolOutcome:
    act = {"number": before + 1, "sent": dict(action), **_recorded(seen, session)}
    texts = [message["content"] for message in seen.messages]
    status = ToolStatus.ERROR if seen.failed else ToolStatus.OK
    # an answer's first tool call shows its own result alone
    own = [m["content"] for m in seen.messages if m["role"] == "tool"][:1] or texts
    content = "\n".join(own)
    if act["done"] and not content:
        content = "The episode is over."
    return ToolOutcome(status, content, output={_ACT: act}, duration_seconds=seconds)


def _recorded(seen: Observed, session: OpenSession) -> dict[str, Any]:
    """Response to an act, as it is recorded and compared."""
    return {
        "messages": [dict(message) for message in seen.messages],
        "reward": seen.reward,
        "done": seen.done or session.is_over,
        "total": session.total,
        "rewards": dict(seen.rewards),
    }


def digest_of(seen: Observed) -> str:
    """Digest of an observation."""
    return content_hash("observed", list(seen.messages), list(seen.tools), seen.reward, seen.done)


def acts_of(trajectory: Trajectory) -> list[Mapping[str, Any]]:
    """Acts of a run in the order in which they ended, as they were recorded: what was sent,
    messages, reward, done, and the sum of the rewards so far.
    """
    acts = [
        call
        for call in trajectory.tool_calls
        if call.ended_at is not None and _ACT in (call.output or {})
    ]
    return [(call.output or {})[_ACT] for call in sorted(acts, key=lambda call: call.ended_at or 0)]


async def _drop(episode: _Episode) -> None:
    session = episode.session
    episode.session = None
    episode.acts = ()
    if session is not None:
        with suppress(Exception):
            await on_loop(session.close())


async def end_episodes(recording: Recording) -> None:
    """End the sessions of a recording."""
    with _lock:
        found = _episodes.pop(recording, None)
    if found is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_END):
                await asyncio.gather(*map(_drop, found.by_place.values()))
