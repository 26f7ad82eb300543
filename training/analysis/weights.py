"""Choice of the weights that compute the entropies of a run's tokens.

If the weights that sampled the tokens are on record, they are chosen: version 0 is the policy that
the calls name, and later versions are the run's `model`, `best` and `checkpoints/step-*`. If not,
the nearest available version is chosen, which has another distribution. Each use of weights records
the version that sampled, and the difference between computed and recorded log-probs.
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
    """Model and version that sampled a call, from the record."""

    model: str
    """Model string."""
    version: int
    """Number of optimiser steps behind the sampler's weights."""


@dataclass(frozen=True, slots=True)
class WeightsOnRecord:
    """Weights that can be loaded."""

    name: str
    """Model string."""
    version: int | None
    """Number of optimiser steps of the run behind the weights (None for weights from elsewhere)."""
    exact: bool = False
    """True if they are the weights that sampled the tokens, by name and version."""


def weights_on_record(run: Path) -> list[WeightsOnRecord]:
    """Weights in the folder of a run, oldest first (empty for a store outside of a run folder)."""
    folders = [run / "model", run / "best", *sorted((run / "checkpoints").glob("step-*"))]
    found = [(step, folder) for folder in folders if (step := _step_of(folder)) is not None]
    return [
        WeightsOnRecord(str(folder), step)
        for step, folder in sorted(found, key=lambda each: each[0])
    ]


def weights_for(
    samplers: Iterable[Sampler], run: Path, policy: str | None
) -> dict[Sampler, WeightsOnRecord | None]:
    """Weights to use for each sampler (None for a sampler without). `policy`: weights to use for
    all samplers.
    """
    if policy is not None:
        asked = parse_model(policy)
        if not asked.local:
            raise ConfigError(
                f"The weights of {policy!r} are not on this machine, but entropies need them.",
                "Name a folder, builtin:NAME or hf:NAME by --policy.",
            )
        local_folder(on_its_base(asked))
        return {
            each: WeightsOnRecord(policy, None, each == Sampler(policy, 0)) for each in samplers
        }
    of_run = weights_on_record(run)
    return {each: _nearest(each, run, of_run) for each in samplers}


def roles_of_weights(weights: WeightsOnRecord) -> frozenset[str]:
    """Roles that have a separate adapter in these weights."""
    name = parse_model(weights.name).name
    return frozenset(roles_on_record(name)) if is_adapter_folder(name) else frozenset()


def load_weights(weights: WeightsOnRecord) -> Any:
    """Load the model, in evaluation mode. Raises `ModelError`."""
    from hrm_agent.models.loading.load_weights import load_for_answers

    whole = on_its_base(parse_model(weights.name))
    return load_for_answers(local_folder(whole), whole.options)[0]


def _nearest(
    sampler: Sampler, run: Path, of_run: Sequence[WeightsOnRecord]
) -> WeightsOnRecord | None:
    """Weights nearest to a sampler (None if there are none). The model that a call names is version
    0 of a training, or the result of the run. An evaluation of the result counts it as version 0,
    too.
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
    """Model string by which a call's model can be loaded on this machine (None if the model is
    hosted or missing).
    """
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
    """True if a call names the result of the run, by the path that the run's folder had at that
    time.
    """
    path = Path(model)
    return path.name in ("model", "best") and path.parent.name in (
        run.name,
        read_whole(run / "run_id"),
    )


def _step_of(folder: Path) -> int | None:
    """Number of optimiser steps, from the checkpoint's manifest (None if the folder has no weights
    or no readable manifest).
    """
    if not (folder / "config.json").is_file() and not is_adapter_folder(str(folder)):
        return None
    try:
        return int(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
