"""Trajectories out of tokens that another program recorded.

What comes in are sequences: token ids, which of them a policy sampled, and how probable it held
them. A run of inserted tokens and the sampled ones after it are one call, which extends the call
before it; sequences that share a beginning share its calls. Nothing is made up: a call whose
log-probs are missing, or of a distribution that the file does not tell, is context that names the
reason (`Call.untrainable`), and what follows the last sampled token was nobody's prompt and is
dropped.
"""

from __future__ import annotations

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
    """What a file may not say of itself."""

    policy: str | None = None
    """The string that names the model; None: the file's own word, else `imported`."""
    raw_logprobs: bool = False
    """The log-probs are known to be raw, whatever the file says."""


End = tuple[str | None, tuple[int, ...]]
"""Where a sequence stands: its last call, and the tokens inserted since."""


@dataclass
class Assembly:
    """One trajectory in the making."""

    id: str
    """Id of the trajectory, and of its thread."""
    origin: Origin
    """What is known of the file besides what it says."""
    place: str
    """Of its row in the file, for messages."""
    model: str | None = None
    """The model by the file's own word; None where it does not say."""
    started_at: float = 0.0
    """Start of the run: Unix time in seconds; 0 where the file has none."""
    ended_at: float = 0.0
    """End of the run: Unix time in seconds; 0 where the file has none."""
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
        """Extend `parent` and the tokens inserted since. `mask` and `logprobs` are aligned with
        `token_ids`.

        `facts` are fields of each call that this gives, and `branch_of`, where a root continues
        another call.
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
        index, extra = len(self.calls), dict(facts)
        branch_of, sampling = extra.pop("branch_of", None), extra.pop("sampling", Sampling())
        untrainable = (
            extra.pop("untrainable", None) or _why_untrainable(kind) or sampling.why_untrainable
        )
        task = str(index)
        call = Call(
            id=call_id(self.id, task, 0),
            identity=GraphIdentity(thread_id=self.id, task_id=task, node="imported"),
            call_index=0,
            request_hash=content_hash(parent, inserted),
            model=self.policy,
            parent=parent,
            branch_of=branch_of if parent is None else None,
            branch_reason=(
                None if parent else BranchReason.TEMPLATE if branch_of else BranchReason.ROOT
            ),
            token_ids=(*inserted, *sampled),
            mask=(False,) * len(inserted) + (True,) * len(sampled),
            logprobs=(0.0,) * len(inserted) + tuple(logprobs or [0.0] * len(sampled)),
            logprob_kind=kind,
            sampling=sampling.model_copy(
                update={"max_tokens": max(sampling.max_tokens, len(sampled))}
            ),
            untrainable=untrainable,
            **self._facts(extra),
        )
        self.calls.append(call)
        return call.id

    def _facts(self, given: dict[str, Any]) -> dict[str, Any]:
        """What a call of this file has, where the file does not say otherwise."""
        return {
            "finish_reason": FinishReason.STOP,
            "response": AIMessage("").model_dump(mode="json"),
            "started_at": self.started_at,
            "ended_at": self.started_at,
            **given,
        }

    def finish(self, **facts: Any) -> Trajectory:
        """The trajectory, with the given fields. Raises `StoreError` where the linter finds
        something.
        """
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
                "docs/trajectory-format.md lists what has to hold; a reward, for one, is a number"
                " from 0 to 1.",
            )
        return trajectory


def _why_untrainable(kind: LogprobKind) -> str | None:
    return {LogprobKind.NONE: NO_LOGPROBS, LogprobKind.SAMPLED: UNKNOWN_LOGPROBS}.get(kind)


def common_kind(trajectory: Trajectory) -> LogprobKind:
    """What all log-probs of the calls to be trained are; NONE where they are not all the same.

    At temperature 1 raw ones are tempered ones.
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
    """Start and end of each run of equal truth."""
    start = 0
    for i in range(1, len(mask) + 1):
        if i == len(mask) or bool(mask[i]) != bool(mask[start]):
            yield start, i
            start = i


def checked(row: Row, needed: Sequence[str], place: str) -> Row:
    """`row`, if it has every key of `needed`."""
    missing = [name for name in needed if row.get(name) is None]
    if missing:
        raise StoreError(
            f"{place} has no {' and no '.join(missing)}.", "Name the format with --format."
        )
    return row
