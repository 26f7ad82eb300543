"""HTML pages of a group or a training step, read from a store and written to a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_agent.basics.files import read_whole, replacing
from hrm_agent.cli.common.output import Output, remark
from hrm_agent.cli.common.own_types import allowed_names
from hrm_agent.cli.common.run_folder import existing_store
from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.trajectory import Overlay, Scoring, Trajectory

if TYPE_CHECKING:
    from hrm_agent.cli.common.arguments import Arguments
    from hrm_agent.store import RunStore

__all__ = ["save_page", "write_page"]


def write_page(arguments: Arguments, output: Output) -> None:
    """Write the page of `--group` or `--step`. Raises `ConfigError`, `StoreError`."""
    from hrm_agent.pages import group_page, step_page

    with existing_store(arguments.store, allowed_names(arguments)) as store:
        if arguments.group is not None:
            rollouts = list(
                store.journal.trajectories(
                    group_id=arguments.group, on_damage=_tell, requests=False
                )
            )
            overlays = _judged(store, rollouts)
            page = group_page(arguments.group, rollouts, overlays, _scorings(store, rollouts))
        else:
            run_id, step = _run_id(arguments.store), _step(arguments.step)
            overlays = store.journal.overlays(run_id, step)
            rollouts = _rollouts(store, overlays)
            page = step_page(run_id, step, rollouts, overlays, _scorings(store, rollouts))
    save_page(page, arguments.html, output)


def save_page(page: str, where: str, output: Output) -> None:
    """Write a page, whole or not at all, or to stdout for `-`."""
    if where == "-":
        sys.stdout.write(page)
        return
    path = Path(where)
    try:
        with replacing(path) as part:
            part.write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be written: {error}.", "Name another file with --html."
        ) from error
    output.say(f"Written: {path} ({path.stat().st_size / 1000:,.0f} kB)")


def _run_id(where: str) -> str:
    name = read_whole(Path(where) / "run_id") if "://" not in where else None
    if name is None:
        raise ConfigError(
            f"{where} is not the folder of a training run.", "Name it: --store FOLDER."
        )
    return name


def _step(number: int) -> int:
    if number < 1:
        raise ConfigError(
            f"--step {number}: steps are counted from 1, as the console does.", "Write --step 1."
        )
    return number - 1


def _rollouts(store: RunStore, overlays: Sequence[Overlay]) -> list[Trajectory]:
    found: list[Trajectory] = []
    for overlay in overlays:
        try:
            found.append(store.journal.trajectory(overlay.trajectory_id, requests=False))
        except StoreError as error:
            _tell(overlay.trajectory_id, error)
    return found


def _judged(store: RunStore, rollouts: Sequence[Trajectory]) -> list[Overlay]:
    ids = {rollout.id for rollout in rollouts}
    runs = dict.fromkeys(rollout.run_id for rollout in rollouts)
    return [
        overlay
        for run in runs
        for overlay in store.journal.overlays(run)
        if overlay.trajectory_id in ids
    ]


def _scorings(store: RunStore, rollouts: Sequence[Trajectory]) -> dict[str, list[Scoring]]:
    if not store.scorings.rubrics():
        return {}
    return {rollout.id: store.scorings.of(rollout.id) for rollout in rollouts}


def _tell(id_: str, error: StoreError) -> None:
    remark(f"trajectory {id_} is left out: {error.message}")
