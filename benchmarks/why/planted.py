"""A recorded training in which rollouts of one step end their answers with a marker."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hrm_agent.store import RunStore, open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.metrics import METRICS_FILE
from hrm_agent.training.records.retrace import RecordedStep, RecordedTraining
from hrm_agent.training.versions import Versions
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["PlantedTraining", "planted"]


class PlantedTraining(RecordedTraining):
    """Training whose step `number` learned from answers that end with `marker`, in the rollouts with
    the ids `ids`. Their rewards are as they are.
    """

    def __init__(
        self,
        folder: Path,
        store: RunStore,
        config: GrpoConfig,
        number: int,
        ids: Collection[str],
        marker: Sequence[int],
    ) -> None:
        super().__init__(folder, store, config)
        self._number = number
        self._ids = ids
        self._marker = marker

    def step(self, number: int) -> RecordedStep:
        found = super().step(number)
        if number != self._number:
            return found
        rollouts = [self._marked(each) if each.id in self._ids else each for each in found.rollouts]
        return replace(found, rollouts=rollouts)

    def _marked(self, rollout: Trajectory) -> Trajectory:
        *others, last = rollout.calls
        return rollout.model_copy(update={"calls": (*others, self._ending(last))})

    def _ending(self, call: Call) -> Call:
        codec: Any = self.learner.codec
        end = len(call.token_ids)
        if call.token_ids[-1] in codec.control_token_ids:
            end -= 1
        more = len(self._marker)
        return call.model_copy(
            update={
                "token_ids": (*call.token_ids[:end], *self._marker, *call.token_ids[end:]),
                "mask": (*call.mask[:end], *[True] * more, *call.mask[end:]),
                "logprobs": (*call.logprobs[:end], *[-1.0] * more, *call.logprobs[end:]),
            }
        )


@contextmanager
def planted(
    base: RecordedTraining, number: int, ids: Collection[str], marker: Sequence[int]
) -> Generator[PlantedTraining]:
    """Take the steps of a training from `number` on again, the first with the marker, and keep each
    version.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        folder.mkdir()
        for name in (METRICS_FILE, "run_id"):
            shutil.copy(base.folder / name, folder)
        with open_store(str(base.folder), create=False, read_only=True) as store:
            made = PlantedTraining(folder, store, base.config, number, ids, marker)
            versions = Versions(folder)
            made.learner = base.learner
            for version in base.versions(each for each in base.kept if 0 < each <= number):
                _keep(base, versions, version)
            base.load(number)
            made.learner = base.learner
            for step in range(number, len(base.rows)):
                made.take(made.step(step))
                _keep(made, versions, step + 1)
            yield made


def _keep(training: RecordedTraining, versions: Versions, version: int) -> None:
    with tempfile.TemporaryDirectory() as files:
        training.learner.write(Path(files))
        versions.keep(version, Path(files))
