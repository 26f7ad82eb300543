"""Trajectories from tokens that another program recorded.

The input is sequences of token ids, with the tokens that a policy sampled and their log-probs. A
run of inserted tokens and the sampled ones after it are one call, which extends the previous call.
Sequences with a common beginning share the calls of this beginning. Missing data is not made up: a
call whose log-probs are missing, or of an unknown distribution, is not trained on, and
`Call.untrainable` names the reason. Tokens after the last sampled one are dropped, since no call
had them as its prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.ids import call_id, content_hash
from hrm_agent.trajectory.lint import lint
from hrm_agent.trajectory.schema import (
    BranchReason,
    Call,
    FinishReason,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    Sampling,
    Trajectory,
)

__all__ = ["Assembly", "End", "Origin", "checked", "common_kind"]

NO_LOGPROBS = "the file gives no log-probs"
UNKNOWN_LOGPROBS = (
    "the file does not say that its log-probs are raw (temperature 1, the whole vocabulary) or"
    " tempered"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about a file that it may not contain."""

    policy: str | None = None
    """String that names the model (None: the name in the file, else `imported`)."""
    raw_logprobs: bool = False
    """True if the log-probs are known to be raw, whatever the file declares."""
    notes: Counter[str] = field(default_factory=Counter[str], compare=False)
    """Parts of the file that a reader left out, in words -> their number."""


End = tuple[str | None, tuple[int, ...]]
"""End of a sequence: its last call, and the tokens inserted after it."""


@dataclass
class Assembly:
    """Trajectory under construction."""

    id: str
    """Id of the trajectory, and of its thread."""
    origin: Origin
    """Known facts about the file."""
    place: str
    """Place of the row in the file, for messages."""
    model: str | None = None
    """Model named in the file (None if it names none)."""
    started_at: float = 0.0
    """Start of the run: Unix time in seconds; 0 if the file has none."""
    ended_at: float = 0.0
    """End of the run: Unix time in seconds; 0 if the file has none."""
    calls: list[Call] = field(default_factory=list[Call])
    """Calls added so far, each after its parent."""

    @property
    def policy(self) -> str:
        return self.origin.policy or self.model or "imported"

    def add(
        self,
        parent: str | None,
        inserted: Sequence[int],
        token_ids: Sequence[int],
        mask: Sequence[Any],
        logprobs: Sequence[float] | None,
        *,
        kind: LogprobKind,
        **facts: Any,
    ) -> End:
        """Add the calls of a sequence that continues `parent` and the tokens `inserted` after it.

        `mask` and `logprobs` are aligned with `token_ids`. `facts`: other fields of each added
        call.
        """
        waiting = list(inserted)
        for start, end in _runs(mask):
            if mask[start]:
                values = None if logprobs is None else logprobs[start:end]
                parent = self._call(parent, waiting, token_ids[start:end], values, kind, facts)
                waiting = []
            else:
                waiting += token_ids[start:end]
        return parent, tuple(waiting)

    def _call(
        self,
        parent: str | None,
        inserted: Sequence[int],
        sampled: Sequence[int],
        logprobs: Sequence[float] | None,
        kind: LogprobKind,
        facts: dict[str, Any],
    ) -> str:
        kind = (
            LogprobKind.NONE
            if logprobs is None
            else LogprobKind.RAW
            if self.origin.raw_logprobs
            else kind
        )
        index = len(self.calls)
        extra = dict(facts)
        sampling = extra.pop("sampling", Sampling())
        unusable = {LogprobKind.NONE: NO_LOGPROBS, LogprobKind.SAMPLED: UNKNOWN_LOGPROBS}
        untrainable = (
            extra.pop("untrainable", None) or unusable.get(kind) or sampling.why_untrainable
        )
        extra.setdefault("finish_reason", FinishReason.STOP)
        extra.setdefault("response", AIMessage("").model_dump(mode="json"))
        extra.setdefault("started_at", self.started_at)
        extra.setdefault("ended_at", self.started_at)
        task = str(index)
        call = Call(
            id=call_id(self.id, task, 0),
            identity=GraphIdentity(thread_id=self.id, task_id=task, node="imported"),
            call_index=0,
            request_hash=content_hash(parent, inserted),
            model=self.policy,
            parent=parent,
            branch_reason=None if parent else BranchReason.ROOT,
            token_ids=(*inserted, *sampled),
            mask=(False,) * len(inserted) + (True,) * len(sampled),
            logprobs=(0.0,) * len(inserted) + tuple(logprobs or [0.0] * len(sampled)),
            logprob_kind=kind,
            sampling=sampling.model_copy(
                update={"max_tokens": max(sampling.max_tokens, len(sampled))}
            ),
            untrainable=untrainable,
            **extra,
        )
        self.calls.append(call)
        return call.id

    def finish(self, **facts: Any) -> Trajectory:
        """Trajectory with the given fields. Raises `StoreError` if the linter finds a problem."""
        running = facts.get("status") is RunStatus.RUNNING
        trajectory = Trajectory(
            id=self.id,
            thread_id=self.id,
            graph="imported",
            policy=self.policy,
            started_at=self.started_at,
            ended_at=None if running else max(self.started_at, self.ended_at),
            calls=tuple(self.calls),
            **facts,
        )
        found = lint(trajectory)
        if found:
            raise StoreError(
                f"{self.place} is not a valid trajectory: {found[0].name}: {found[0].message}.",
                "docs/trajectory-format.md lists the invariants. For example, a reward is a number"
                " from 0 to 1.",
            )
        return trajectory


def common_kind(trajectory: Trajectory) -> LogprobKind:
    """Common kind of the log-probs of all calls to be trained (NONE if they differ).

    At temperature 1 raw and tempered log-probs are equal.
    """
    calls = trajectory.policy_calls
    if all(call.logprob_kind is LogprobKind.RAW for call in calls):
        return LogprobKind.RAW
    tempered = (
        call.logprob_kind is LogprobKind.TEMPERED or call.sampled_with.temperature == 1
        for call in calls
    )
    return LogprobKind.TEMPERED if all(tempered) else LogprobKind.NONE


def _runs(mask: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Start and end of each run of equal truth values."""
    start = 0
    for i in range(1, len(mask) + 1):
        if i == len(mask) or bool(mask[i]) != bool(mask[start]):
            yield start, i
            start = i


def checked(row: Row, needed: Sequence[str], place: str) -> Row:
    """Return `row` if it has every key of `needed`. Raises `StoreError` otherwise."""
    missing = [name for name in needed if row.get(name) is None]
    if missing:
        raise StoreError(
            f"{place} has no {' and no '.join(missing)}.", "Name the format with --format."
        )
    return row
