"""Schema version 2 of the record: what one graph run leaves behind.

A `Trajectory` is a projection of the store, never a copy kept beside it. It holds raw facts only:
what was asked, which tokens were added and which of them the policy sampled, what each tool call
came to. Judgements made later (kept by the trainer or not, penalties, advantages) are an `Overlay`,
keyed by the training run, so that a stored run can be judged again, by another algorithm, as often
as one likes.

The calls of a trajectory form a *message forest*: each call stores only the tokens that it adds to
its parent (`Call.token_ids`), and the concatenation along the path from the root is exactly what
the model saw, followed by what it answered. Where a conversation could not be continued token by
token, the call starts a new root and `branch_reason` says why.

All records are frozen. Alignment, units and the meaning of `None` stand under each field.
"""

from __future__ import annotations

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
"""Version 1 lacked `root_checkpoint_id`, `output` and `idempotency_key`; its records read with
their defaults. A record of version 2 that lacks a newer field reads with its default, too.
"""


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(value: tuple[object, ...]) -> bool:
    return not value


class Call(Record):
    """One model call. `token_ids`, `mask` and `logprobs` have one entry per added token."""

    id: str
    """`hash(thread_id, task_id, call_index, sample_index)`: the same on every resume of the same
    task.
    """
    identity: GraphIdentity
    """Thread, checkpoint, task and node that the call was made from."""
    call_index: int
    """Index of the call within its LangGraph task, from 0."""
    sample_index: int = 0
    """Index among several answers to one request, from 0."""
    request_hash: str
    """Hash of messages, tools and sampling; a resumed node gets this answer back only for the same
    request.
    """
    context_hash: str = ""
    """Hash of the messages sent and the answer: a later call extends this one only if its
    conversation starts so.
    """
    tools_hash: str = ""
    """Hash of the tools offered."""
    model: str
    """The string that names the model that was asked."""
    answered_by: str | None = None
    """The model that answered, by the provider's own word; None where it named none, and of an
    engine.
    """
    policy_version: int = 0
    """Number of optimiser steps behind the weights that sampled this call; 0 for a model that is
    not trained here.
    """
    parent: str | None = None
    """Id of the call that this one extends token by token; None for a root."""
    branch_reason: BranchReason | None = None
    """Why this call is a root; None exactly if it has a parent."""
    branch_of: str | None = None
    """Id of the call that this root would have extended but could not; None for other calls."""
    token_ids: tuple[int, ...] = ()
    """The tokens that this call adds to its parent: prompt tokens first, then completion tokens."""
    mask: tuple[bool, ...] = ()
    """One entry per token: True for completion tokens, which the policy sampled; False for prompt
    tokens.
    """
    logprobs: tuple[float, ...] = ()
    """Natural log of each token's probability when it was sampled; 0.0 for prompt tokens."""
    logprob_kind: LogprobKind = LogprobKind.NONE
    """Of which distribution `logprobs` are."""
    sampling: Sampling | None = Sampling()
    """Parameters that an engine sampled the call with, its seed included; None where another
    program's model answered. Older records have those of the policy in force there.
    """
    sampling_sent: SentSampling | None = None
    """Parameters as the request to another program's model named them; None for a call of an
    engine.
    """
    usage: CallUsage | None = None
    """Tokens and cost as the provider reported them; None where it did not, and of an engine, whose
    tokens are here.
    """
    finish_reason: FinishReason = FinishReason.STOP
    """Why sampling stopped."""
    constrained: bool = False
    """The answer was held to a JSON schema while it was sampled. `logprobs` are those without that
    mask where the engine is in this process, and under it where it is a server.
    """
    untrainable: str | None = None
    """Why a trainer cannot learn from this call (no token ids, temperature 0), as known when it was
    made; else None.
    """
    request: tuple[dict[str, Any], ...] | None = None
    """The messages sent, all of them. Bytes in them are shown as base64 text. None: not on record,
    as of the calls with token ids in older records.
    """
    tools: tuple[dict[str, Any], ...] | None = None
    """The tools offered, whole, in the provider's form; empty if there were none. None: not on
    record.
    """
    response: dict[str, Any]
    """The answer as a LangChain message dump, which a resumed node gets back. Bytes are shown as
    base64 text. For a failed call: the part streamed before, else empty.
    """
    exact: dict[str, Any] | None = Field(default=None, exclude_if=_is_none)
    """Parts of the answer that a JSON dump would change: its class, and fields with bytes, tuples
    or objects in them. None: `response` is complete.
    """
    lost: tuple[str, ...] | None = Field(default=None, exclude_if=_is_none)
    """Places and types of values in the answer that could not be stored."""
    error: RaisedError | None = Field(default=None, exclude_if=_is_none)
    """Error that the call raised; None if it was answered. A failed call is in
    `Trajectory.failed_calls`.
    """
    instead_of: str | None = Field(default=None, exclude_if=_is_none)
    """Id of the failed call that this one asks again, when its node was run again by a resume."""
    started_at: float
    """Start of the call: Unix time in seconds."""
    ended_at: float
    """End of the call: Unix time in seconds."""
    queue_seconds: float = 0.0
    """Seconds of the call's duration that were spent waiting for the engine."""

    @property
    def sampled_tokens(self) -> int:
        return sum(self.mask)

    @property
    def why_untrainable(self) -> str | None:
        """`untrainable`, or what the sampling parameters say: older records give no reason for
        those.
        """
        return self.untrainable or (self.sampling and self.sampling.why_untrainable)

    @property
    def sampled_with(self) -> Sampling:
        """`sampling` of a call with token ids. Raises `ValueError` for one of another program's
        model.
        """
        if self.sampling is None:
            raise ValueError(f"call {self.id} was not sampled by an engine")
        return self.sampling

    @property
    def seed(self) -> int | None:
        """The seed that an engine sampled it with; None without one."""
        return self.sampling.seed if self.sampling is not None else None

    @property
    def used(self) -> CallUsage | None:
        """Tokens and cost, whoever counted them: `usage`; else what the answer shows of them, and
        the tokens here.
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
    """One tool call with its typed outcome."""

    id: str
    """`hash(thread_id, task_id, tool_call_id)`."""
    identity: GraphIdentity
    """Thread, checkpoint, task and node that the tool was called from."""
    tool_call_id: str
    """The id by which the model's message names this call."""
    name: str
    """Name of the tool, as the model called it."""
    arguments: dict[str, Any] | str
    """As the model gave them; the raw text where it could not be decoded."""
    status: ToolStatus | None = None
    """How the call ended; None while it is under way (or was when the process died)."""
    content: str = ""
    """What the model is shown."""
    stdout: str = ""
    """What the code wrote to standard output, cut in the middle where it is long; empty for other
    tools.
    """
    stderr: str = ""
    """What the code wrote to standard error, cut in the middle where it is long; of other tools,
    what went wrong.
    """
    value: str | None = None
    """repr of the last expression or of `RESULT`; None if there is none."""
    output: dict[str, Any] | None = None
    """The whole answer of a tool that is not ours, so that it can be given back; None: `content`
    says it all.
    """
    idempotency_key: str | None = None
    """Names the effect of the call, where the tool declares one: a thread has it once, whichever
    task asks.
    """
    duration_seconds: float = 0.0
    """Wall-clock time in seconds from the call's beginning to its end, without the time in the
    queue.
    """
    started_at: float = 0.0
    """Start of the call: Unix time in seconds."""
    ended_at: float | None = None
    """End of the call: Unix time in seconds; None while it is under way, and in older records."""
    isolation: str = ""
    """The level that its code ran under, `L3` to `L0`; empty for a call that ran no code, and in
    older records.
    """
    session: SessionState | None = None
    """What the call found of its session's earlier calls; None outside sessions."""
    changed_cells: tuple[int, ...] = ()
    """Numbers, from 1, of the session's earlier calls that gave another result when they were run
    again for this one; the first sixteen. Counted are those whose process lived on.
    """
    cpu_seconds: float | None = Field(default=None, ge=0)
    """CPU time of the whole tree of its processes; None where nobody measured it."""
    peak_memory_bytes: int | None = Field(default=None, ge=0)
    """Largest resident memory; of a session, since it began. None where nobody measured it."""
    queued_seconds: float = Field(default=0.0, ge=0)
    """Time in seconds that the call waited before it began; no part of `duration_seconds`."""
    attempt: int = Field(default=1, ge=1)
    """1; 2 where the infrastructure lost the first attempt."""
    refused: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """System call -> how often its code asked for it and was refused: what an attempt to get out
    leaves behind.
    """
    repeated_of: str | None = None
    """Id of an earlier call of this thread with the same name and arguments: marks a padded
    transcript.
    """
    graph_effects: tuple[dict[str, Any], ...] = Field(
        default=(), exclude_if=lambda effects: not effects
    )
    """Effects on the graph around it, beside its result, in order
    (`hrm_agent.tools.graph_effects`).
    """


class TaskRef(Record):
    """The task as it was put, enough to verify an answer again."""

    id: str
    """Unique within its family."""
    family: str
    """Family of tasks that it is from: `word_problems`, `reasoning_gym:chain_sum`, `jsonl:FILE` and
    so on.
    """
    prompt: str
    """The task's text, as the graph was given it."""
    answer: str | None = None
    """The reference answer, where the family has one."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """What else the family says of the task, as JSON."""


class ForkRef(Record):
    """Where a forked run left the run it stems from."""

    trajectory_id: str
    """Trajectory of the run that was forked."""
    checkpoint_id: str
    """The last checkpoint that both runs share."""


class TurnEnd(Record):
    """How a turn of a conversation ended, as `Trajectory` says it of the newest one."""

    status: RunStatus
    """Status of the run at the end of the turn."""
    stop_reason: StopReason | None = None
    """Why the turn ended; None while it is under way."""
    error: str | None = None
    """Error of a turn that `failed`, or by how much its prompt was too long (None: neither)."""
    error_at: str | None = None
    """Place of the error, as `file.py:LINE in function` (None: no error, or an older record)."""
    answer: str | None = None
    """Text of the turn's final message; None without one."""


class Turn(Record):
    """What a person said on a thread after its task, and how the turn before had ended by then."""

    id: str
    """Id of the message that holds the turn in the graph's state."""
    prompt: str
    """What the person said."""
    before: TurnEnd
    """How the turn before ended; `aborted` for one that was under way, and was not resumed."""
    started_at: float
    """Unix time in seconds; later than the end of every call of the turns before."""


class Trajectory(Record):
    """One graph run on one thread, as raw facts. In a conversation: of all its turns, with the end
    of the newest.
    """

    schema_version: Literal[1, 2] = 2
    """Version of this format that the record was written in."""
    id: str
    """Id of the trajectory; of a run made here, 16 hex digits made from `thread_id`."""
    thread_id: str
    """The thread that the graph ran on."""
    run_id: str = ""
    """The collect, eval or training run that asked for it."""
    group_id: str = ""
    """Rollouts of one task in one step share it."""
    sample_index: int = 0
    """Index within the group, from 0."""
    task: TaskRef
    """The task that the graph was asked to do."""
    graph: str
    """The graph, as the user named it: `tool_loop`, or `package.module:attribute`."""
    policy: str
    """The string that names the policy's model."""
    policy_version: int = 0
    """Number of optimiser steps behind the policy's weights when the run started."""
    status: RunStatus = RunStatus.RUNNING
    """Where the run stands."""
    stop_reason: StopReason | None = None
    """Why the run ended; None while it is under way."""
    error: str | None = None
    """Error of a `failed` run; for one that the context window ended, by how much its prompt was
    too long.
    """
    error_at: str | None = None
    """Place of the error, as `file.py:LINE in function` (None: no error, or an older record)."""
    answer: str | None = None
    """Text of the final message; None without one."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """Rewards by name, as the run that made this trajectory scored it: `correct`, from 0 to 1, is
    the outcome, and `reward` the weighted sum where a rubric has several parts. Empty until scored.
    Later scores are a `Scoring`.
    """
    turns: tuple[Turn, ...] = ()
    """Turns after the first one, whose prompt is the task's. Empty for a run of one turn."""
    forked_from: ForkRef | None = None
    """Where a forked run left its origin; None for a run that began at its task."""
    started_at: float
    """Start of the run: Unix time in seconds."""
    ended_at: float | None = None
    """End of the run, of a conversation its newest turn's: Unix time in seconds; None while it is
    under way.
    """
    calls: tuple[Call, ...] = ()
    """Model calls in the order in which they finished. A forked run begins with those of the
    lineage that it left.
    """
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls in the order in which they were started, inherited ones first."""
    failed_calls: tuple[Call, ...] = Field(default=(), exclude_if=_is_empty)
    """Model calls that raised, or whose stream the program left, inherited ones first. They are
    counted nowhere and never trained on; a replay raises their errors again.
    """

    @property
    def own_calls(self) -> tuple[Call, ...]:
        """What is counted and trained: the calls of this run's thread. Those that a fork inherited
        are context here.
        """
        if self.forked_from is None:
            return self.calls
        return tuple(call for call in self.calls if call.identity.thread_id == self.thread_id)

    @property
    def own_tool_calls(self) -> tuple[ToolCall, ...]:
        """Those of this run's own thread: what the policy is judged by."""
        if self.forked_from is None:
            return self.tool_calls
        return tuple(call for call in self.tool_calls if call.identity.thread_id == self.thread_id)

    @property
    def policy_calls(self) -> tuple[Call, ...]:
        """What a trainer learns from: this run's own trainable calls that its policy sampled."""
        return tuple(
            call for call in self.own_calls if call.trainable and call.model == self.policy
        )

    @property
    def sampled_tokens(self) -> int:
        return sum(call.sampled_tokens for call in self.own_calls)

    @property
    def used(self) -> CallUsage:
        """Tokens and cost of this run's own calls together, as far as they are known."""
        return total_usage(call.used for call in self.own_calls)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that answered this run's own calls, each once."""
        return tuple(dict.fromkeys(call.answered_by or call.model for call in self.own_calls))

    @property
    def prompts(self) -> tuple[str, ...]:
        """What the person said, turn by turn."""
        return self.task.prompt, *(turn.prompt for turn in self.turns)

    @property
    def outcome(self) -> float:
        """Whether the answer is right, from 0 to 1; 0 for a run that was not scored."""
        return self.rewards.get("correct", 0.0)

    @property
    def reward(self) -> float:
        """What is maximised: a rubric's weighted sum, else the outcome; 0 for a run that was not
        scored.
        """
        return self.rewards.get("reward", self.outcome)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from hrm_agent.trajectory.words import trajectory_html

        return trajectory_html(self)

    @property
    def trainable(self) -> bool:
        return bool(self.own_calls) and all(call.trainable for call in self.calls)
