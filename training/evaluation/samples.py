"""A trajectory reduced to what statistics need: facts that add up, and no tokens.

Where a rollout comes to its answer by a choice among several runs, its own thread holds the choice
and the answer; the candidates are a group named after that thread. They are no samples, since
nobody handed in their answers, but what they cost, the rollout cost.
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

__all__ = ["Effort", "Problem", "Sample", "samples_of"]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """What a sample is a sample of. The prompt belongs to it: two files may give one id to two
    problems.
    """

    id: str
    """The task's id, unique within its family."""
    prompt_hash: str
    """Hash of the prompt."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a run took."""

    calls: int = 0
    """Model calls."""
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Prompt tokens (`read`) and completion tokens (`sampled`): (model, kind) -> count."""
    tools: Counter[str] = field(default_factory=Counter[str])
    """Tool calls by status."""
    tool_errors: int = 0
    """Tool calls that failed by the policy's doing."""
    roles: Roles = field(default_factory=Roles)
    """By role, what `hrm_agent.training.evaluation.roles.ROLE_COUNTS` names."""
    model_seconds: float = 0.0
    """Sum over calls, waiting for the engine included; calls side by side count each."""
    tool_seconds: float = 0.0
    """Sum over tool calls of their duration, without the time in the queue."""
    reported_cost: float = math.nan
    """Sum of what providers reported; nan where none did."""

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
    """One answer to one problem, or the lack of one."""

    problem: Problem
    """The problem that it answers."""
    family: str
    """Name of the task's family."""
    thread: str
    """Id of the run's thread."""
    group: str
    """The run's group; for a candidate of a choice, the thread that chooses."""
    forked: bool
    """True for a fork."""
    status: RunStatus
    """Where the run stands."""
    stop_reason: str
    """Empty while under way."""
    correct: bool
    """A truncated run is wrong, whatever it has to show."""
    verified: bool
    """Its answer is right, in whatever way the run ended."""
    rewards: Mapping[str, float]
    """As the run was scored."""
    answer_key: str
    """Equal for equal answers; empty where there is none, or the run was truncated."""
    began: float
    """Start of the run: Unix time in seconds."""
    ended: float | None
    """End of the run: Unix time in seconds; None while under way."""
    effort: Effort
    """What the run took; for a choice, its candidates' effort included."""
    second: bool = False
    """It was run once more, since a machine failed it: what the first attempt came to counts for
    nothing.
    """

    @property
    def unscored(self) -> bool:
        """It ended well, and nothing has said whether it is right."""
        return self.status is RunStatus.COMPLETED and not self.rewards


def samples_of(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """The samples among `trajectories`, each with the effort of its candidates.

    Forks that a person made are none, nor is the first attempt of a rollout that was run once more.
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
    return Sample(
        problem=Problem(trajectory.task.id, content_hash(trajectory.task.prompt)),
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
        effort=_effort(trajectory),
    )


def _effort(trajectory: Trajectory) -> Effort:
    tokens: Counter[tuple[str, str]] = Counter()
    for call in trajectory.own_calls:
        read, sampled = usage(call)
        tokens.update({(call.model, "read"): read, (call.model, "sampled"): sampled})
    tools = trajectory.own_tool_calls
    return Effort(
        calls=len(trajectory.own_calls),
        tokens=tokens,
        tools=Counter(tool.status.value if tool.status else "under way" for tool in tools),
        tool_errors=sum(
            tool.status is not None and tool.status.is_policy_failure for tool in tools
        ),
        roles=role_counts(trajectory),
        model_seconds=math.fsum(call.seconds for call in trajectory.own_calls),
        tool_seconds=math.fsum(tool.duration_seconds for tool in tools),
        reported_cost=_known_sum(reported_cost(call) for call in trajectory.own_calls),
    )


def _known_sum(values: Iterable[float]) -> float:
    """Of what is known; nan where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) if known else math.nan
