"""Schema version 2 of the record of one graph run.

A `Trajectory` is a projection of the store, never a copy kept beside it. It holds raw facts only:
the requests, the tokens added and which of them the policy sampled, and the outcome of each tool
call. Later judgements (kept by the trainer or not, penalties, advantages) are an `Overlay`, keyed
by the training run, so that a stored run can be judged again by any algorithm.

The calls of a trajectory form a *message forest*: each call stores only the tokens that it adds to
its parent (`Call.token_ids`). The concatenation along the path from the root is exactly what the
model saw, followed by its answer. If a conversation could not be continued token by token, the call
starts a new root and `branch_reason` gives the reason.

All records are frozen. Alignment, units and the meaning of `None` are given under each field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Annotated, Any, Literal

from pydantic import Field

from hrm_agent.trajectory.call_facts import (
    CallUsage,
    GraphIdentity,
    RaisedError,
    Sampling,
    SentSampling,
    reported_usage,
    total_usage,
)
from hrm_agent.trajectory.enums import (
    BranchReason,
    DropReason,
    FinishReason,
    LogprobKind,
    RunStatus,
    SessionState,
    StopReason,
    ToolStatus,
    Verdict,
)
from hrm_agent.trajectory.record import Record

__all__ = [
    "SCHEMA_VERSION",
    "BranchReason",
    "Call",
    "CallUsage",
    "DropReason",
    "FinishReason",
    "ForkRef",
    "GraphIdentity",
    "LogprobKind",
    "RaisedError",
    "RunStatus",
    "Sampling",
    "SentSampling",
    "SessionState",
    "StopReason",
    "TaskRef",
    "ToolCall",
    "ToolStatus",
    "Trajectory",
    "Turn",
    "TurnEnd",
    "Verdict",
]

SCHEMA_VERSION = 2
"""Version of new records. Version 1 lacked `root_checkpoint_id`, `output` and `idempotency_key`.
Any field that an older record lacks is read as its default.
"""


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(value: Sized) -> bool:
    return not value


class Call(Record):
    """Model call. `token_ids`, `mask` and `logprobs` have one entry per added token."""

    id: str
    """`hash(thread_id, task_id, call_index, sample_index)`, equal on every resume of the task."""
    identity: GraphIdentity
    """Thread, checkpoint, task and node of the call."""
    call_index: int
    """Index of the call within its LangGraph task, from 0."""
    sample_index: int = 0
    """Index among several answers to one request, from 0."""
    request_hash: str
    """Hash of messages, tools and sampling. A resumed node gets this answer back only for an equal
    request.
    """
    context_hash: str = ""
    """Hash of the messages sent and the answer. A later call extends this one only if the later
    call's conversation begins with these messages.
    """
    tools_hash: str = ""
    """Hash of the tools offered."""
    model: str
    """String that names the requested model."""
    answered_by: str | None = None
    """Model that answered, as named by the provider (None if not named, and for an engine)."""
    policy_version: int = 0
    """Number of optimiser steps of the weights that sampled this call; 0 for a model that is not
    trained here.
    """
    parent: str | None = None
    """Id of the call that this one extends token by token (None for a root)."""
    branch_reason: BranchReason | None = None
    """Reason why this call is a root (None exactly if it has a parent)."""
    branch_of: str | None = None
    """Id of the call that this root would have extended but could not (None for other calls)."""
    token_ids: tuple[int, ...] = ()
    """Tokens that this call adds to its parent: prompt tokens first, then completion tokens."""
    mask: tuple[bool, ...] = ()
    """Flag per token: True for completion tokens, which the policy sampled; False for prompt
    tokens.
    """
    logprobs: tuple[float, ...] = ()
    """Natural log of each token's probability when it was sampled; 0.0 for prompt tokens."""
    logprob_kind: LogprobKind = LogprobKind.NONE
    """Distribution that `logprobs` belong to."""
    sampling: Sampling | None = Sampling()
    """Sampling parameters of the engine, including the seed (None if another program's model
    answered). In older records, a call of such a model has the policy's parameters.
    """
    sampling_sent: SentSampling | None = None
    """Sampling parameters named in the request to another program's model (None for a call of an
    engine).
    """
    usage: CallUsage | None = None
    """Tokens and cost as the provider reported them (None if not reported, and for an engine, whose
    tokens are in `token_ids`).
    """
    finish_reason: FinishReason = FinishReason.STOP
    """Reason why sampling stopped."""
    constrained: bool = False
    """True if the answer was held to a JSON schema while it was sampled. `logprobs` are those
    before the schema restricts the tokens if the engine is in this process, and those after it if
    the engine is a server.
    """
    untrainable: str | None = None
    """Reason why a trainer cannot learn from this call, as known when it was made: no token ids,
    temperature 0 (None otherwise).
    """
    request: tuple[dict[str, Any], ...] | None = None
    """All messages sent, with bytes shown as base64 text (None: not on record, as for calls with
    token ids in older records).
    """
    tools: tuple[dict[str, Any], ...] | None = None
    """All tools offered, complete, in the provider's form; empty if there were none (None: not on
    record).
    """
    response: dict[str, Any]
    """Answer as a LangChain message dump, which a resumed node gets back. Bytes are shown as base64
    text. A failed call has the part that was streamed before the error, if there is one.
    """
    exact: dict[str, Any] | None = Field(default=None, exclude_if=_is_none)
    """Parts of the answer that a JSON dump would change: its class, and fields with bytes, tuples
    or objects (None: `response` is complete).
    """
    lost: tuple[str, ...] | None = Field(default=None, exclude_if=_is_none)
    """Places and types of values in the answer that could not be stored."""
    error: RaisedError | None = Field(default=None, exclude_if=_is_none)
    """Error that the call raised (None if it was answered). A failed call is in
    `Trajectory.failed_calls`.
    """
    instead_of: str | None = Field(default=None, exclude_if=_is_none)
    """Id of the failed call whose request this call repeats, since a resume ran the node again."""
    started_at: float
    """Start of the call: Unix time in seconds."""
    ended_at: float
    """End of the call: Unix time in seconds."""
    queue_seconds: float = 0.0
    """Seconds of the call's duration spent waiting for the engine."""

    @property
    def sampled_tokens(self) -> int:
        return sum(self.mask)

    @property
    def why_untrainable(self) -> str | None:
        """Reason why a trainer cannot learn from this call (None if it can): `untrainable`, else
        the reason that follows from `sampling`, since older records do not state that one.
        """
        return self.untrainable or (self.sampling and self.sampling.why_untrainable)

    @property
    def sampled_with(self) -> Sampling:
        """`sampling` of a call with token ids. Raises `ValueError` for a call of another program's
        model.
        """
        if self.sampling is None:
            raise ValueError(f"call {self.id} was not sampled by an engine")
        return self.sampling

    @property
    def seed(self) -> int | None:
        """Seed that an engine sampled the call with (None without one)."""
        return self.sampling.seed if self.sampling is not None else None

    @property
    def used(self) -> CallUsage | None:
        """Tokens and cost: `usage`, else the report in the answer. Completion tokens are counted if
        token ids are on record.
        """
        reported = self.usage or reported_usage(self.response)
        if not self.token_ids:
            return reported
        return (reported or CallUsage()).model_copy(update={"output_tokens": self.sampled_tokens})

    @property
    def trainable(self) -> bool:
        return self.why_untrainable is None

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at


class ToolCall(Record):
    """Tool call with its typed outcome."""

    id: str
    """Id of the tool call's record: `hash(thread_id, task_id, tool_call_id)`."""
    identity: GraphIdentity
    """Thread, checkpoint, task and node of the tool call."""
    tool_call_id: str
    """Id of this call in the model's message."""
    name: str
    """Name of the tool, as the model wrote it."""
    arguments: dict[str, Any] | str
    """Arguments as the model gave them; the raw text if they could not be decoded."""
    status: ToolStatus | None = None
    """Outcome of the call (None while it is in progress, or if the process died then)."""
    content: str = ""
    """Text that the model is shown."""
    stdout: str = ""
    """Standard output of the code, cut in the middle if it is long; empty for other tools."""
    stderr: str = ""
    """Standard error of the code, cut in the middle if it is long; for other tools, a description
    of the failure.
    """
    value: str | None = None
    """repr of the last expression or of `RESULT` (None if there is none)."""
    output: dict[str, Any] | None = None
    """Whole answer of a tool from outside this package, so that it can be given back (None:
    `content` is complete).
    """
    idempotency_key: str | None = None
    """Key of the call's effect, if the tool declares one. A thread has each effect once, whichever
    task asks.
    """
    duration_seconds: float = 0.0
    """Wall-clock time of the call in seconds, without the time in the queue."""
    started_at: float = 0.0
    """Start of the call: Unix time in seconds."""
    ended_at: float | None = None
    """End of the call: Unix time in seconds (None while it is in progress, and in older
    records).
    """
    isolation: str = ""
    """Isolation level of the code, `L3` to `L0`; empty for a call that ran no code, and in older
    records.
    """
    session: SessionState | None = None
    """State in which the call found its session's earlier calls (None outside sessions)."""
    changed_cells: tuple[int, ...] = ()
    """Numbers, from 1, of the session's earlier calls that gave another result when they were run
    again for this one; the first sixteen. Only calls whose process lived on are counted.
    """
    cpu_seconds: float | None = Field(default=None, ge=0)
    """CPU time of the call's process tree, in seconds (None if not measured)."""
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    """Largest resident memory in bytes; for a session, since it began (None if not measured)."""
    queued_seconds: float = Field(default=0.0, ge=0)
    """Seconds that the call waited before it began, not part of `duration_seconds`."""
    attempt: int = Field(default=1, ge=1)
    """Number of the attempt: 1, or 2 if the infrastructure lost the first one."""
    refused: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """System call -> number of times that it was refused to the code. An attempt to escape leaves
    such entries.
    """
    repeated_of: str | None = None
    """Id of an earlier call of this thread with the same name and arguments. Such repeats can pad a
    transcript.
    """
    graph_effects: tuple[dict[str, Any], ...] = Field(
        default=(), exclude_if=lambda effects: not effects
    )
    """Effects on the surrounding graph besides the result, in order
    (`hrm_agent.tools.graph_effects`).
    """


class TaskRef(Record):
    """Task of a run, with all that is needed to verify an answer again."""

    id: str
    """Id of the task, unique within its family."""
    family: str
    """Family of the task: `word_problems`, `reasoning_gym:chain_sum`, `jsonl:FILE` and so on."""
    prompt: str
    """Text of the task, as given to the graph."""
    answer: str | None = None
    """Reference answer, if the family has one."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Further data of the family about the task, as JSON."""


class ForkRef(Record):
    """Checkpoint at which a forked run left its origin."""

    trajectory_id: str
    """Trajectory of the run that was forked."""
    checkpoint_id: str
    """Last checkpoint that both runs share."""


class TurnEnd(Record):
    """End of a turn of a conversation, with the fields in which `Trajectory` holds the newest
    turn's end.
    """

    status: RunStatus
    """Status of the run at the end of the turn."""
    stop_reason: StopReason | None = None
    """Reason why the turn ended (None while it is in progress)."""
    error: str | None = None
    """Error of a `failed` turn, or by how much its prompt was too long (None if neither)."""
    error_at: str | None = None
    """Place of the error, as `file.py:LINE in function` (None: no error, or an older record)."""
    answer: str | None = None
    """Text of the turn's final message (None without one)."""


class Turn(Record):
    """Turn on a thread after its task, with the end of the previous turn."""

    id: str
    """Id of the message that holds the turn in the graph's state."""
    prompt: str
    """User message of the turn."""
    before: TurnEnd
    """End of the previous turn; `aborted` if it was in progress and not resumed."""
    started_at: float
    """Start of the turn: Unix time in seconds, later than the end of every call of the previous
    turns.
    """


class Trajectory(Record):
    """Raw facts of one graph run on one thread. A conversation has all its turns in one trajectory,
    whose end is the end of the newest turn.
    """

    schema_version: Literal[1, 2] = 2
    """Version of this format that the record was written in."""
    id: str
    """Id of the trajectory: 16 hex digits derived from `thread_id`, unless it was imported."""
    thread_id: str
    """Thread that the graph ran on."""
    run_id: str = ""
    """Id of the collect, eval or training run that the trajectory belongs to."""
    group_id: str = ""
    """Id that rollouts of one task in one step share."""
    sample_index: int = 0
    """Index within the group, from 0."""
    task: TaskRef
    """Task that the graph was asked to do."""
    graph: str
    """Graph as the user named it: `tool_loop`, or `package.module:attribute`."""
    policy: str
    """String that names the policy's model."""
    policy_version: int = 0
    """Number of optimiser steps of the policy's weights when the run started."""
    status: RunStatus = RunStatus.RUNNING
    """Status of the run."""
    stop_reason: StopReason | None = None
    """Reason why the run ended (None while it is in progress)."""
    error: str | None = None
    """Error of a `failed` run, or by how much the prompt was too long for the context window."""
    error_at: str | None = None
    """Place of the error, as `file.py:LINE in function` (None: no error, or an older record)."""
    answer: str | None = None
    """Text of the final message (None without one)."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """Rewards by name, scored by the run that made this trajectory; empty until it is scored.
    `correct`, from 0 to 1, is the outcome; `reward` is the weighted sum if a rubric has several
    parts. Later scores are kept as a `Scoring`.
    """
    rewards_by_call: dict[str, dict[str, float]] = Field(default_factory=dict, exclude_if=_is_empty)
    """Rewards of single calls beside those of the run: name -> id of a model call or tool call ->
    value. `reward` is the weighted sum.
    """
    turns: tuple[Turn, ...] = ()
    """Turns after the first, whose prompt is the task's; empty for a run of one turn."""
    forked_from: ForkRef | None = None
    """Place where a forked run left its origin (None for a run that began at its task)."""
    started_at: float
    """Start of the run: Unix time in seconds."""
    ended_at: float | None = None
    """End of the run, or of a conversation's newest turn: Unix time in seconds (None while it is in
    progress).
    """
    calls: tuple[Call, ...] = ()
    """Model calls in the order in which they finished. A forked run begins with the calls that it
    inherited.
    """
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls in the order in which they started, inherited ones first."""
    failed_calls: tuple[Call, ...] = Field(default=(), exclude_if=_is_empty)
    """Model calls that raised an error, or whose stream the program left, inherited ones first.
    They are not counted or trained on; a replay raises their errors again.
    """

    @property
    def own_calls(self) -> tuple[Call, ...]:
        """Calls of this run's own thread, which are counted and trained. Inherited calls of a fork
        are context only.
        """
        if self.forked_from is None:
            return self.calls
        return tuple(call for call in self.calls if call.identity.thread_id == self.thread_id)

    @property
    def own_tool_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of this run's own thread, by which the policy is judged."""
        if self.forked_from is None:
            return self.tool_calls
        return tuple(call for call in self.tool_calls if call.identity.thread_id == self.thread_id)

    @property
    def policy_calls(self) -> tuple[Call, ...]:
        """Calls that a trainer learns from: own trainable calls that the policy sampled."""
        return tuple(
            call for call in self.own_calls if call.trainable and call.model == self.policy
        )

    @property
    def sampled_tokens(self) -> int:
        return sum(call.sampled_tokens for call in self.own_calls)

    @property
    def used(self) -> CallUsage:
        """Tokens and cost of this run's own calls, as far as known."""
        return total_usage(call.used for call in self.own_calls)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that answered this run's own calls, each once."""
        return tuple(dict.fromkeys(call.answered_by or call.model for call in self.own_calls))

    @property
    def prompts(self) -> tuple[str, ...]:
        """User messages, turn by turn."""
        return self.task.prompt, *(turn.prompt for turn in self.turns)

    @property
    def outcome(self) -> float:
        """Correctness of the answer, from 0 to 1; 0 for a run that was not scored."""
        return self.rewards.get("correct", 0.0)

    @property
    def reward(self) -> float:
        """Reward to maximise: a rubric's weighted sum, else the outcome; 0 for a run that was not
        scored.
        """
        return self.rewards.get("reward", self.outcome)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Fields that a notebook shows, without the tokens of the calls."""
        for name in ("id", "graph", "policy", "status", "answer", "error", "rewards"):
            yield name, getattr(self, name)
        yield "calls", len(self.calls)
        yield "tool_calls", len(self.tool_calls)

    @property
    def trainable(self) -> bool:
        return bool(self.own_calls) and all(call.trainable for call in self.calls)
