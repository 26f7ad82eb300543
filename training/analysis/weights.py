"""Which weights compute the entropies of a run's tokens.

Those that sampled them, where they are on record: version 0 is the policy that the calls name,
later versions are the run's `model`, `best` and `checkpoints/step-*`. Else the nearest version that
is there, which is another distribution: each use of weights says which version sampled, and by how
much the log-probs differ from those recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import read_whole
from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.adapter_folder import is_adapter_folder, on_its_base, roles_on_record
from hrm_agent.models.loading.policy_loader import local_folder
from hrm_agent.models.model_string import is_folder, parse_model
from hrm_agent.training.checkpoints import MANIFEST

__all__ = [
    "Sampler",
    "WeightsOnRecord",
    "load_weights",
    "roles_of_weights",
    "weights_for",
    "weights_on_record",
]


@dataclass(frozen=True, slots=True, order=True)
class Sampler:
    """What sampled a call, by the record."""

    model: str
    """The string that names the model."""
    version: int
    """Optimiser steps behind its weights."""


@dataclass(frozen=True, slots=True)
class WeightsOnRecord:
    """Weights that can be loaded."""

    name: str
    """A model string."""
    version: int | None
    """Optimiser steps of the run behind them; None where they are not of the run."""
    exact: bool = False
    """Whether they are those that sampled what they stand for, by names and versions."""


def weights_on_record(run: Path) -> list[WeightsOnRecord]:
    """Those in the folder of a run, oldest first; empty for a store that lies in no folder of its
    own.
    """
    folders = [run / "model", run / "best", *sorted((run / "checkpoints").glob("step-*"))]
    found = [(step, folder) for folder in folders if (step := _step_of(folder)) is not None]
    return [
        WeightsOnRecord(str(folder), step)
        for step, folder in sorted(found, key=lambda each: each[0])
    ]


def weights_for(
    samplers: Iterable[Sampler], run: Path, policy: str | None
) -> dict[Sampler, WeightsOnRecord | None]:
    """The weights that stand for each sampler; None where there are none. `policy`: those that
    stand for all.
    """
    if policy is not None:
        _check_local(policy)
        return {
            each: WeightsOnRecord(policy, None, each == Sampler(policy, 0)) for each in samplers
        }
    of_run = weights_on_record(run)
    return {each: _nearest(each, run, of_run) for each in samplers}


def roles_of_weights(weights: WeightsOnRecord) -> frozenset[str]:
    """Roles with an adapter of their own."""
    name = parse_model(weights.name).name
    return frozenset(roles_on_record(name)) if is_adapter_folder(name) else frozenset()


def load_weights(weights: WeightsOnRecord) -> Any:
    """The model, in evaluation mode. Raises `ModelError`."""
    from hrm_agent.models.loading.load_weights import load_for_answers

    whole = on_its_base(parse_model(weights.name))
    return load_for_answers(local_folder(whole), whole.options)[0]


def _nearest(
    sampler: Sampler, run: Path, of_run: Sequence[WeightsOnRecord]
) -> WeightsOnRecord | None:
    """What the calls name is version 0 of a training, or the run's own result, which an evaluation
    counts as 0 too.
    """
    named = _named(sampler.model, run)
    if _is_result(sampler.model, run):
        if named is None:
            return of_run[-1] if of_run else None
        return WeightsOnRecord(named, _step_of(Path(named)), exact=sampler.version == 0)
    known = ([] if named is None else [WeightsOnRecord(named, 0)]) + list(of_run)
    found = min(known, key=lambda each: abs((each.version or 0) - sampler.version), default=None)
    return None if found is None else replace(found, exact=found.version == sampler.version)


def _named(model: str, run: Path) -> str | None:
    """What a call names, as it can be loaded here; None for what is hosted, or gone."""
    asked = parse_model(model)
    if not asked.local:
        return None
    if not asked.scheme and not is_folder(asked.name):
        moved = run / Path(asked.name).name
        return str(moved) if _is_result(model, run) and moved.is_dir() else None
    try:
        local_folder(on_its_base(asked))
    except ModelError:
        return None
    return model


def _is_result(model: str, run: Path) -> bool:
    """Whether a call names the run's own result,
    by the path that the folder had when it was made.
    """
    path = Path(model)
    return path.name in ("model", "best") and path.parent.name in (
        run.name,
        read_whole(run / "run_id"),
    )


def _check_local(policy: str) -> None:
    asked = parse_model(policy)
    if not asked.local:
        raise ConfigError(
            f"The weights of {policy!r} are not here: entropies need them.",
            "Name a folder, builtin:NAME or hf:NAME by --policy.",
        )
    local_folder(on_its_base(asked))


def _step_of(folder: Path) -> int | None:
    """Number of optimiser steps, from the checkpoint's manifest; None if the folder holds no
    weights.
    """
    if not (folder / "config.json").is_file() and not is_adapter_folder(str(folder)):
        return None
    try:
        return int(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
