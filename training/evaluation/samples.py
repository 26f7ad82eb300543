"""Samples: trajectories reduced to the facts that statistics need, without tokens.

If a rollout chooses its answer among several runs, the rollout's thread has the choice and the
answer. The candidates are in a group whose name is that thread's. Candidates are not samples, since
their answers were not submitted, but their effort counts for the rollout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hrm_agent.answers.equivalence import normalize_answer
from hrm_agent.training.evaluation.prices import reported_cost, usage
from hrm_agent.training.evaluation.roles import Roles, role_counts
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.trajectory import RunStatus, Trajectory, content_hash

__all__ = ["Effort", "Problem", "Sample", "problem_of", "samples_of"]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Problem that a sample answers, identified by id and prompt, since two files may give the same
    id to different problems.
    """

    id: str
    """Id of the task, unique within its family."""
    prompt_hash: str
    """Hash of the prompt."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of a run: calls, tokens, tools and time."""

    calls: int = 0
    """Number of model calls."""
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """(model, kind) -> number of tokens. Kinds are prompt tokens (`read`) and completion tokens
    (`sampled`).
    """
    tools: Counter[str] = field(default_factory=Counter[str])
    """Number of tool calls by status."""
    tool_errors: int = 0
    """Number of tool calls that failed through the policy's fault."""
    roles: Roles = field(default_factory=Roles)
    """Counts by role, as named in `hrm_agent.training.evaluation.roles.ROLE_COUNTS`."""
    model_seconds: float = 0.0
    """Total seconds of model calls, including time in which they wait for the engine. Parallel
    calls are added up.
    """
    tool_seconds: float = 0.0
    """Total seconds of tool calls, without the time in a queue."""
    reported_cost: float = math.nan
    """Cost reported by providers (nan if none did)."""

    def __add__(self, other: Effort) -> Effort:
        roles = {name: Counter(counts) for name, counts in self.roles.items()}
        for name, counts in other.roles.items():
            roles.setdefault(name, Counter()).update(counts)
        return Effort(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            tools=self.tools + other.tools,
            tool_errors=self.tool_errors + other.tool_errors,
            roles=roles,
            model_seconds=self.model_seconds + other.model_seconds,
            tool_seconds=self.tool_seconds + other.tool_seconds,
            reported_cost=_known_sum((self.reported_cost, other.reported_cost)),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a problem, with or without an answer."""

    problem: Problem
    """Problem of the sample."""
    family: str
    """Name of the task's family."""
    thread: str
    """Thread id of the run."""
    group: str
    """Group of the run. For a candidate, it is the thread of the run that chooses."""
    forked: bool
    """True for a fork."""
    status: RunStatus
    """Status of the run."""
    stop_reason: str
    """Stop reason (empty while the run is in progress)."""
    correct: bool
    """True if the answer is right and the run was not truncated."""
    verified: bool
    """True if the answer is right, even if the run was truncated."""
    rewards: Mapping[str, float]
    """Rewards of the run."""
    answer_key: str
    """Normalised answer, equal for equal answers (empty without an answer, or if the run did not
    complete).
    """
    began: float
    """Start of the run: Unix time in seconds."""
    ended: float | None
    """End of the run: Unix time in seconds (None while it is in progress)."""
    effort: Effort
    """Effort of the run, including the candidates among which it chooses."""
    second: bool = False
    """True for a second attempt, after a machine failed the first. The first attempt is
    no sample.
    """

    @property
    def unscored(self) -> bool:
        """True if the run completed and has not been scored."""
        return self.status is RunStatus.COMPLETED and not self.rewards


def problem_of(trajectory: Trajectory) -> Problem:
    """Problem that a trajectory answers."""
    return Problem(trajectory.task.id, content_hash(trajectory.task.prompt))


def samples_of(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """Samples of `trajectories`, each with the effort of its candidates.

    Forks, candidates and first attempts of repeated rollouts are left out.
    """
    everything = [_sample(trajectory) for trajectory in trajectories]
    threads = {sample.thread for sample in everything}
    efforts: dict[str, Effort] = {}
    for candidate in everything:
        if candidate.group in threads:
            efforts[candidate.group] = efforts.get(candidate.group, Effort()) + candidate.effort
    again = {thread + SECOND_ATTEMPT for thread in threads}
    own = [
        replace(sample, second=sample.thread in again)
        for sample in everything
        if sample.group not in threads
        and not sample.forked
        and sample.thread + SECOND_ATTEMPT not in threads
    ]
    return [
        replace(s, effort=s.effort + efforts[s.thread]) if s.thread in efforts else s for s in own
    ]


def _sample(trajectory: Trajectory) -> Sample:
    completed = trajectory.status is RunStatus.COMPLETED
    calls = trajectory.own_calls
    tools = trajectory.own_tool_calls
    tokens: Counter[tuple[str, str]] = Counter()
    for call in calls:
        read, sampled = usage(call)
        tokens.update({(call.model, "read"): read, (call.model, "sampled"): sampled})
    effort = Effort(
        calls=len(calls),
        tokens=tokens,
        tools=Counter(tool.status.value if tool.status else "under way" for tool in tools),
        tool_errors=sum(
            tool.status is not None and tool.status.is_policy_failure for tool in tools
        ),
        roles=role_counts(trajectory),
        model_seconds=math.fsum(call.seconds for call in calls),
        tool_seconds=math.fsum(tool.duration_seconds for tool in tools),
        reported_cost=_known_sum(reported_cost(call) for call in calls),
    )
    return Sample(
        problem=problem_of(trajectory),
        family=trajectory.task.family,
        thread=trajectory.thread_id,
        group=trajectory.group_id,
        forked=trajectory.forked_from is not None,
        status=trajectory.status,
        stop_reason=trajectory.stop_reason.value if trajectory.stop_reason else "",
        correct=is_positive(outcome_of(trajectory)),
        verified=is_positive(trajectory.outcome),
        rewards=trajectory.rewards,
        answer_key=normalize_answer(trajectory.answer or "") if completed else "",
        began=trajectory.started_at,
        ended=trajectory.ended_at,
        effort=effort,
    )


def _known_sum(values: Iterable[float]) -> float:
    """Sum of the known values (nan if none is known)."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) if known else math.nan
