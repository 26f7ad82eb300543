"""Pages that compare the rollouts of one task, or of all tasks of a training step: kept
ones first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hrm_agent.basics.markup import Html, document, element, join, pairs, table
from hrm_agent.errors import StoreError
from hrm_agent.pages.run import anchor, article, fact, tool_strip, verdict_mark
from hrm_agent.trajectory import Overlay, Scoring, Trajectory, Verdict

__all__ = ["group_page", "step_page"]

Scorings = Mapping[str, Sequence[Scoring]]
"""Scorings by rubrics, by the id of a trajectory."""
_PROMPT_SHOWN = 100
"""Maximum characters of a prompt in the list of groups."""
_COLUMNS = ("rollout", "reward", "status", "verdict", "advantage", "tool calls", "tokens", "reason")


def group_page(
    group_id: str,
    rollouts: Sequence[Trajectory],
    overlays: Sequence[Overlay] = (),
    scorings: Scorings | None = None,
) -> str:
    """Page of one group's rollouts. `overlays`: judgements by training runs. Raises `StoreError`
    without a rollout.
    """
    if not rollouts:
        raise StoreError(
            f"There is no group {group_id!r}.",
            "`hrm-agent history --json` names the group of each run.",
        )
    return document(
        f"group {group_id}",
        element("h1", "Group ", group_id, id=anchor("group", group_id)),
        _siblings(rollouts, overlays),
        *_articles(rollouts, overlays, scorings or {}),
    )


def step_page(
    run_id: str,
    step: int,
    rollouts: Sequence[Trajectory],
    overlays: Sequence[Overlay],
    scorings: Scorings | None = None,
) -> str:
    """Page of the groups of a training step. `step`: its recorded number, from 0, as in overlays.

    Raises `StoreError` without a rollout.
    """
    if not rollouts:
        raise StoreError(
            f"Step {step + 1} of run {run_id!r} has no rollout on record.", "Name another step."
        )
    groups: dict[str, list[Trajectory]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group_id, []).append(rollout)
    verdicts = Counter(overlay.verdict for overlay in overlays)
    facts = [
        ("on record", f"step {step}: the record counts from 0, the console from 1"),
        ("groups", len(groups)),
        ("rollouts", len(rollouts)),
        *(
            (verdict.value.replace("_", " "), verdicts[verdict])
            for verdict in Verdict
            if verdicts[verdict]
        ),
    ]
    return document(
        f"step {step + 1} of {run_id}",
        element("h1", f"Step {step + 1} of run ", run_id),
        pairs(facts),
        element("nav", _contents(groups, overlays), aria_label="groups"),
        *(
            join(
                element("h2", "Group ", group, id=anchor("group", group)),
                _siblings(siblings, overlays),
            )
            for group, siblings in groups.items()
        ),
        element("h2", "The rollouts, one by one"),
        *_articles(rollouts, overlays, scorings or {}),
    )


def _contents(groups: Mapping[str, Sequence[Trajectory]], overlays: Sequence[Overlay]) -> Html:
    kept = {overlay.trajectory_id for overlay in overlays if overlay.verdict is Verdict.KEPT}
    rows = [
        (
            element("a", group, href=f"#{anchor('group', group)}"),
            f"{sum(one.outcome > 0 for one in siblings)} of {len(siblings)}",
            sum(one.id in kept for one in siblings),
            _short(siblings[0].task.prompt),
        )
        for group, siblings in groups.items()
    ]
    return table(("group", "right", "kept", "prompt"), rows)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PROMPT_SHOWN else f"{line[:_PROMPT_SHOWN]} …"


def _siblings(rollouts: Sequence[Trajectory], overlays: Sequence[Overlay]) -> Html:
    task = rollouts[0].task
    by_id: dict[str, list[Overlay]] = {}
    for overlay in overlays:
        by_id.setdefault(overlay.trajectory_id, []).append(overlay)
    ordered = sorted(
        rollouts, key=lambda one: (not _is_kept(by_id.get(one.id, ())), one.sample_index)
    )
    facts = [
        ("task", f"{task.family} {task.id}"),
        ("prompt", fact(task.prompt)),
        ("reference", fact(task.answer)),
    ]
    rows = [row for rollout in ordered for row in _rows(rollout, by_id.get(rollout.id, ()))]
    return join(pairs(facts), table(_COLUMNS, rows))


def _is_kept(overlays: Sequence[Overlay]) -> bool:
    return any(overlay.verdict is Verdict.KEPT for overlay in overlays)


def _rows(rollout: Trajectory, overlays: Sequence[Overlay]) -> list[tuple[object, ...]]:
    """Rows of a rollout, one for each training run that judged it, at least one."""
    link = element("a", rollout.sample_index, href=f"#{anchor(rollout.id)}", title=rollout.id)
    status = rollout.stop_reason.value if rollout.stop_reason else rollout.status.value
    facts = (tool_strip(rollout), rollout.used.output_tokens)
    if not overlays:
        return [(link, _rewards(rollout), status, None, None, *facts, None)]
    return [
        (
            link,
            _rewards(rollout),
            status,
            verdict_mark(overlay),
            None if overlay.advantage is None else f"{overlay.advantage:+.3f}",
            *facts,
            overlay.reason,
        )
        for overlay in overlays
    ]


def _articles(
    rollouts: Sequence[Trajectory], overlays: Sequence[Overlay], scorings: Scorings
) -> list[Html]:
    by_id: dict[str, list[Overlay]] = {}
    for overlay in overlays:
        by_id.setdefault(overlay.trajectory_id, []).append(overlay)
    return [
        element(
            "details",
            element(
                "summary",
                f"{one.group_id}, rollout {one.sample_index}: ",
                _in_short(one, by_id.get(one.id, ())),
            ),
            element(
                "p",
                element("a", "to its group", href=f"#{anchor('group', one.group_id)}"),
                class_="back",
            ),
            article(one, by_id.get(one.id, ()), scorings.get(one.id, ())),
        )
        for one in rollouts
    ]


def _in_short(rollout: Trajectory, overlays: Sequence[Overlay]) -> str:
    return ", ".join(
        [_rewards(rollout), *(overlay.verdict.value.replace("_", " ") for overlay in overlays)]
    )


def _rewards(rollout: Trajectory) -> str:
    return (
        ", ".join(f"{name} {value:g}" for name, value in rollout.rewards.items()) or "not verified"
    )
