"""Selection of recorded groups of rollouts that a training learns from.

Groups are selected once, before the run has a folder, and are then listed in its folder
(`groups.json`). So a resumed run learns from the same groups and the same rewards, even if more was
recorded or scored since. The record itself is not copied.

Rollouts that a training sampled have a recorded step, found in the names of their threads
(`RUN/step-7/...`) or in the verdicts of their run. If all groups have a recorded step, each step of
the new training takes the groups of one recorded step, in order; groups of equal steps of several
runs are taken together. If not, groups are drawn in an order decided by the seed,
`prompts_per_step` at a time. After the last group the next pass begins.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from hrm_agent.basics.files import read_whole, replacing
from hrm_agent.errors import ConfigError, RunError, StoreError, TaskError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.evaluation.rubrics import scored_by
from hrm_agent.training.records.runs import RecordedRuns, TokenReader, is_same_store, opened_runs
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT, fault_of
from hrm_agent.training.rollout.rollout import Attempts
from hrm_agent.training.select.roc import reward_of
from hrm_agent.training.update.advantages import turn_options, turns_differ
from hrm_agent.training.update.batch import NoGradient, no_gradient
from hrm_agent.trajectory import RunStatus, Trajectory, derive_seed, step_in_name

__all__ = [
    "GROUPS",
    "RecordedGroup",
    "RecordedGroups",
    "attempts_of_group",
    "kept_groups",
    "select_groups",
]

GROUPS = "groups.json"
"""Name of the file in a run's folder."""
_UNREADABLE = "cannot be read: `hrm-agent store verify` lists why"


class RecordedGroup(BaseModel):
    """Rollouts of one prompt."""

    model_config = ConfigDict(frozen=True)

    source: int
    """Index in `sources` of the record that has the group."""
    group_id: str
    """Id of the group on record."""
    step: int | None
    """Training step in which the group was sampled (None for rollouts that no training sampled)."""
    rollouts: tuple[tuple[str, ...], ...]
    """Trajectory ids of the attempts of each rollout."""


class RecordedGroups(BaseModel):
    """Groups that a training learns from, with the numbers of what was left out."""

    model_config = ConfigDict(frozen=True)

    sources: tuple[str, ...]
    """Stores, folders or files of the records, as the user named them."""
    groups: tuple[RecordedGroup, ...]
    """Groups, sorted by step if all have one, else in the order of the record."""
    rewards: dict[str, dict[str, float]] | None = None
    """Trajectory id -> rewards that replace the recorded ones, if scores were named (None: the
    recorded rewards are used).
    """
    by_call: dict[str, dict[str, dict[str, float]]] = {}
    """Trajectory id -> rewards of single calls that belong to `rewards`."""
    left_out: dict[str, int] = {}
    """Reason -> number of trajectories left out."""
    context: dict[str, int] = {}
    """Reason -> number of calls without a gradient."""
    idle: dict[str, int] = {}
    """Reason -> number of groups that teach nothing."""

    def own_steps(self) -> list[int] | None:
        """Recorded steps, sorted (None if groups are drawn)."""
        steps = {group.step for group in self.groups}
        return None if None in steps else sorted(step for step in steps if step is not None)

    def steps_of_pass(self, prompts_per_step: int) -> int:
        """Number of steps of one pass, in which each group is taken once."""
        own = self.own_steps()
        return len(own) if own is not None else -(-len(self.groups) // prompts_per_step)

    def of_step(self, step: int, prompts_per_step: int, seed: int) -> list[RecordedGroup]:
        """Groups of a step, counted from 0."""
        turn, place = divmod(step, self.steps_of_pass(prompts_per_step))
        if (own := self.own_steps()) is not None:
            return [group for group in self.groups if group.step == own[place]]
        order = random.Random(derive_seed(seed, "recorded-groups", turn)).sample(
            self.groups, len(self.groups)
        )
        return order[place * prompts_per_step :][:prompts_per_step]

    def rewarded(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with the rewards that the training learns from."""
        if self.rewards is None:
            return trajectory
        return _with_rewards(trajectory, self.rewards, self.by_call)

    def write(self, folder: Path) -> None:
        """Write the groups to a run's folder."""
        with replacing(folder / GROUPS) as part:
            part.write_text(self.model_dump_json(), encoding="utf-8")

    def lines(self, steps: int, prompts_per_step: int) -> list[str]:
        """Summary, as text lines, of the groups that are learned from and of what is left out."""
        rollouts = sum(len(group.rollouts) for group in self.groups)
        a_pass = self.steps_of_pass(prompts_per_step)
        how = (
            "as they were recorded"
            if self.own_steps() is not None
            else f"of {prompts_per_step} groups, drawn"
        )
        first = (
            f"{len(self.groups)} groups of {rollouts} rollouts on record: {a_pass} steps a pass,"
            f" {how}; "
        )
        first += f"{steps} steps are" if steps != 1 else "1 step is"
        first += f" {steps / a_pass:g} pass{'es' * (steps != a_pass)}."
        return [first, *_told(self.left_out, self.context, self.idle)]


def _with_rewards(
    trajectory: Trajectory,
    rewards: Mapping[str, dict[str, float]],
    by_call: Mapping[str, dict[str, dict[str, float]]],
) -> Trajectory:
    """Return the trajectory with the given rewards of its id, or without any."""
    own = {
        "rewards": rewards.get(trajectory.id, {}),
        "rewards_by_call": by_call.get(trajectory.id, {}),
    }
    return trajectory.model_copy(update=own)


def kept_groups(folder: Path) -> RecordedGroups | None:
    """Groups that the run in `folder` learns from (None for a new run). Raises `RunError` if their
    file is damaged.
    """
    text = read_whole(folder / GROUPS)
    if text is None:
        return None
    try:
        return RecordedGroups.model_validate_json(text)
    except ValueError as error:
        raise RunError(
            f"{folder / GROUPS} is damaged, so the groups that the run learns from are unknown.",
            "Start a new run in a new folder.",
        ) from error


def attempts_of_group(
    group: RecordedGroup,
    runs: Sequence[RecordedRuns],
    tokens: TokenReader,
    *,
    requests: bool = False,
) -> list[Attempts]:
    """Read the rollouts of a group. `requests`: include the requests of their calls."""
    source = runs[group.source]
    return [
        tuple(
            tokens.readied(source.whole(trajectory_id, requests=requests))
            for trajectory_id in attempts
        )
        for attempts in group.rollouts
    ]


def select_groups(config: GrpoConfig, own_store: str) -> RecordedGroups:
    """Select the groups to learn from in `config.source`. Raises `TaskError` if there are none.

    `own_store`: store of the training run, which must not be a source. Raises `ConfigError` if it
    is a source, or if a source is named twice.
    """
    if len(set(config.source)) < len(config.source):
        raise ConfigError(
            f"--from names a place twice: {', '.join(config.source)}.", "Name each once."
        )
    for where in config.source:
        if is_same_store(where, own_store):
            raise ConfigError(
                f"{where} is the store to which this run would write its verdicts, but a source"
                " must only be read.",
                "Name another folder with --out, and no --store.",
            )
    tokens = TokenReader(config.policy)
    with opened_runs(config.source, config.allowed_types) as runs:
        return _Selection(config, runs, tokens).made()


class _Selection:
    def __init__(
        self, config: GrpoConfig, runs: Sequence[RecordedRuns], tokens: TokenReader
    ) -> None:
        self._config = config
        self._runs = runs
        self._tokens = tokens
        self._left_out = Counter[str]()
        self._forks = 0
        self._context = Counter[str]()
        self._idle = Counter[str]()
        self._rewards: dict[str, dict[str, float]] = {}
        self._by_call: dict[str, dict[str, dict[str, float]]] = {}
        self._seen: dict[str, dict[str, float]] = {}
        """Group id -> start time of each of its rollouts."""
        self._calls = 0
        """Number of calls that can be trained on."""

    def made(self) -> RecordedGroups:
        groups = [group for source in range(len(self._runs)) for group in self._of_source(source)]
        if all(group.step is not None for group in groups):
            groups.sort(key=lambda group: group.step or 0)
        found = RecordedGroups(
            sources=self._config.source,
            groups=tuple(groups),
            rewards=self._rewards if self._config.by else None,
            by_call=self._by_call,
            left_out=self._left_out,
            context=self._context,
            idle=self._idle,
        )
        if self._config.loss.credit == "forks" and not self._forks:
            raise TaskError(
                f"credit = forks learns from forks, and {', '.join(found.sources)} has none.",
                "Take another credit, or the folder of a training with credit = forks.",
            )
        if groups and self._calls and sum(found.idle.values()) < len(groups):
            return found
        where = ", ".join(found.sources)
        why = " ".join(_told(found.left_out, found.context, found.idle)) or "No run is on record."
        raise TaskError(
            f"There is nothing to learn from in {where}. {why}",
            "Rollouts of the same task are needed (`collect --samples 8`) that have different"
            " rewards, and that a policy with this tokenizer sampled at a temperature above 0 and"
            " with top_p 1. `train sft --from` learns from all completed runs.",
        )

    def _of_source(self, source: int) -> Iterator[RecordedGroup]:
        runs = self._runs[source]
        left_out = dict[str, int]()
        headers = runs.headers(left_out)
        self._left_out.update(left_out)
        self._forks += sum(header.forked_from is not None for header in headers)
        if self._config.by:
            scorings = runs.scorings(self._config.by, headers)
            for header in headers:
                scored = scored_by(header, scorings)
                if scored is not None and scored.rewards and header.id not in self._rewards:
                    self._rewards[header.id] = scored.rewards
                    if scored.rewards_by_call:
                        self._by_call[header.id] = scored.rewards_by_call
        steps = _steps(runs, headers)
        grouped = self._grouped(headers, steps)
        for (run_id, group_id), members in grouped.items():
            step = steps[run_id].get(members[0].id) if run_id in steps else None
            group = RecordedGroup(
                source=source, group_id=group_id, step=step, rollouts=_rollouts(members)
            )
            if (read := self._read(group)) is not None:
                yield read

    def _grouped(
        self, headers: Sequence[Trajectory], steps: Mapping[str, Mapping[str, int]]
    ) -> dict[tuple[str, str], list[Trajectory]]:
        """Members by (run, group), sorted by the group's place, without groups that an earlier
        source has.
        """
        found: dict[tuple[str, str], list[Trajectory]] = {}
        for header in headers:
            if lack := self._lack(header, steps):
                self._left_out[lack] += 1
            else:
                found.setdefault((header.run_id, header.group_id), []).append(header)
        own: dict[tuple[str, str], list[Trajectory]] = {}
        for key, members in found.items():
            began = {member.id: member.started_at for member in members}
            if (known := self._seen.get(key[1])) is not None:
                if any(known[name] != began[name] for name in known.keys() & began.keys()):
                    raise ConfigError(
                        f"--from names two different runs that are both called {key[0]!r}, after"
                        " their folders: their rollouts cannot be told apart.",
                        "Learn from one of them, or sample one again under another folder name.",
                    )
                self._left_out["of a group that is on record twice"] += len(members)
            elif len(_rollouts(members)) < 2:
                self._left_out["alone in its group: there is nothing to compare it with"] += len(
                    members
                )
            else:
                self._seen[key[1]] = began
                own[key] = members
        return dict(sorted(own.items(), key=lambda item: _place(item[1][0])))

    def _lack(self, header: Trajectory, steps: Mapping[str, Mapping[str, int]]) -> str:
        if header.status is RunStatus.RUNNING:
            return "still under way"
        if not header.group_id:
            return "of no group: there is nothing to compare it with"
        if header.run_id in steps and header.id not in steps[header.run_id]:
            return "of a training, but of none of its steps (for example of an evaluation)"
        return ""

    def _read(self, group: RecordedGroup) -> RecordedGroup | None:
        """Return the group without unreadable rollouts (None if fewer than two rollouts
        are left).
        """
        whole: dict[str, Trajectory] = {}
        for trajectory_id in (attempts[-1] for attempts in group.rollouts):
            try:
                found = self._runs[group.source].whole(trajectory_id, requests=False)
            except StoreError:
                self._left_out[_UNREADABLE] += 1
            else:
                whole[trajectory_id] = self._tokens.readied(found)
        kept = group.model_copy(
            update={"rollouts": tuple(each for each in group.rollouts if each[-1] in whole)}
        )
        if len(whole) < 2:
            self._left_out["of a group of which nothing else can be read"] += len(whole)
            return None
        rollouts = list(whole.values())
        if self._config.by:
            rollouts = [_with_rewards(each, self._rewards, self._by_call) for each in rollouts]
        self._look_at(rollouts)
        return kept

    def _look_at(self, rollouts: Sequence[Trajectory]) -> None:
        """Count the trainable calls of a group, and the reasons why it gives no gradient."""
        reasons = [(no_gradient(call, t.policy), call) for t in rollouts for call in t.own_calls]
        trainable = sum(reason is None for reason, _ in reasons)
        self._calls += trainable
        self._context.update(
            (reason is NoGradient.UNTRAINABLE and call.why_untrainable)
            or reason.value.replace("_", " ")
            for reason, call in reasons
            if reason is not None
        )
        able = (
            rollouts
            if self._config.rewards
            else [each for each in rollouts if fault_of(each) is None]
        )
        if not trainable:
            self._idle["none of their calls can be trained on"] += 1
        elif not able:
            by = f" by {self._config.by}" if self._config.by else ""
            self._idle[f"none of their rollouts has a reward{by}"] += 1
        elif self._config.rewards is None and not self._teaches(able):
            self._idle["their rewards are equal"] += 1

    def _teaches(self, able: Sequence[Trajectory]) -> bool:
        """True if rollouts of one group may get different weights."""
        loss = self._config.loss
        if len({reward_of(each, self._config.select.truncated) for each in able}) > 1:
            return True
        by_turn = loss.credit == "per_turn" and turns_differ(able, turn_options(loss))
        return by_turn or loss.teacher is not None


def _steps(runs: RecordedRuns, headers: Sequence[Trajectory]) -> dict[str, dict[str, int]]:
    """Recorded steps: run id -> trajectory id -> step, for each run that is a training."""
    named: dict[str, dict[str, int]] = {}
    for header in headers:
        if (step := step_in_name(header.thread_id, header.run_id)) is not None:
            named.setdefault(header.run_id, {})[header.id] = step
    if runs.store is None:
        return named
    for run_id in {header.run_id for header in headers} - named.keys() - {""}:
        overlays = runs.store.journal.overlays(run_id)
        # overlays without advantages come from a choice among runs, not from a training
        if any(overlay.advantage is not None for overlay in overlays):
            named[run_id] = {overlay.trajectory_id: overlay.step for overlay in overlays}
    return named


def _place(header: Trajectory) -> int:
    """Place of a group within its step, read from the thread's name (0 if unknown)."""
    # a thread's name is RUN/STAGE/PLACE/SAMPLE
    parts = header.thread_id.removeprefix(f"{header.run_id}/").split("/")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0


def _rollouts(members: Sequence[Trajectory]) -> tuple[tuple[str, ...], ...]:
    """Attempts of each rollout, sorted by sample index."""
    by_thread = {each.thread_id: each for each in members}
    firsts = [
        t
        for t in members
        if t.thread_id.removesuffix(SECOND_ATTEMPT) not in by_thread.keys() - {t.thread_id}
    ]
    ordered = sorted(firsts, key=lambda each: each.sample_index)
    attempts = ((each, by_thread.get(f"{each.thread_id}{SECOND_ATTEMPT}")) for each in ordered)
    return tuple(tuple(each.id for each in pair if each is not None) for pair in attempts)


def _told(
    left_out: Mapping[str, int], context: Mapping[str, int], idle: Mapping[str, int]
) -> list[str]:
    def by_count(found: Mapping[str, int]) -> Iterable[tuple[str, int]]:
        return Counter(found).most_common()

    return [
        *(
            f"{count} rollout{'s' * (count != 1)} left out: {reason}."
            for reason, count in by_count(left_out)
        ),
        *(
            f"{count} call{'s' * (count != 1)} not trained on: {reason}."
            for reason, count in by_count(context)
        ),
        *(
            f"{count} group{'s' * (count != 1)} without a signal: {reason}."
            for reason, count in by_count(idle)
        ),
    ]
