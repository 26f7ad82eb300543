"""Learner of one of several ranks. Rank 0 orders the other ranks to repeat its operations.

With `ddp` each rank holds all weights and the whole optimiser, gradients are averaged, and
checkpoints are those of one process. With `fsdp2` each rank holds a share of the weights and of the
optimiser, and writes its share of a checkpoint. With both, the policy's module is complete on each
rank: the engine samples with it, and rank 0 saves it.

A rank other than 0 (`follow`) runs the rollouts that rank 0 hands to it, and takes part in each
update. It has a learner and an engine, and opens the run's store. In the run's folder it reads only
checkpoints that rank 0 names, and writes only its share of a checkpoint with sharded weights.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from hrm_agent.basics.frozen_heap import frozen_heap
from hrm_agent.errors import RunError
from hrm_agent.models import Engine
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import of_sequences
from hrm_agent.training.own_parts import digests_of, refuse_other_parts
from hrm_agent.training.ranks.processes import Ranks
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.learner import OPTIMIZER_FILE, Learner
from hrm_agent.training.update.optimizers import make_adamw
from hrm_agent.training.update.sharded import (
    gather,
    is_sharded,
    read_sharded,
    shard,
    take_whole,
    write_sharded,
)
from hrm_agent.training.update.teachers import LocalTeacher
from hrm_agent.training.workers.process import opened_rollouts
from hrm_agent.training.workers.wire import Message

__all__ = ["RankLearner", "follow", "led", "shared_out"]


class RankLearner(Learner):
    """Learner with weights that the ranks hold as copies or shares."""

    def __init__(self, config: GrpoConfig, ranks: Ranks, folder: Path | None = None) -> None:
        """Build the learner. All ranks have to call this together. `folder`: the run's folder, on
        rank 0.
        """
        self._ranks = ranks
        self._sharded = ranks.sharding == "fsdp2"
        super().__init__(config, ranks.accelerator, folder)
        if self._sharded and self.reference is not None:
            self.reference = self._shard(self.reference).eval().requires_grad_(False)
        if self._sharded and self.teachers is not None:
            for teacher in dict.fromkeys(self.teachers.all):
                if isinstance(teacher, LocalTeacher):
                    teacher.share(self._shard)
        loss = config.loss
        self._by_sequence = of_sequences(loss.objective) or loss.correction == "sequence"

    def _prepared(self, model: Any) -> tuple[Any, Any]:
        if not self._sharded:
            return super()._prepared(model)
        sharded = self._shard(model)
        return sharded, make_adamw(sharded, self._config.optim)

    def _shard(self, model: Any) -> Any:
        return shard(model, ranks=self._ranks.count, device=self.accelerator.device)

    @cached_property
    def engine(self) -> Engine:
        """Engine of this rank, which samples with all weights. Servers belong to rank 0."""
        if self._on_servers:
            return super().engine
        engine = TransformersEngine(self._policy.model, self.codec, name=self.name)
        engine.publish(self.version)
        return engine

    def publish(self, version: int) -> None:
        if self._sharded:
            with self._ranks.exchange():
                gather(self.model, self._policy.model)
        super().publish(version)

    def update(
        self, batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]], rate: float
    ) -> dict[str, Any]:
        """Update the weights. Rank 0 gets all batches, and sends the other ranks their shares."""
        if self._ranks.leads:
            shares = shared_out(batches, self._ranks.count, whole=self._by_sequence)
            self._ranks.order("update", lambda rank: (shares[rank], rate))
            batches = shares[0]
        with self._ranks.exchange():
            return super().update(batches, rate)

    def begin_optimizer_afresh(self) -> None:
        self._ranks.order("afresh")
        super().begin_optimizer_afresh()

    def write(self, folder: Path) -> None:
        if not self._sharded:
            super().write(folder)
            return
        self._ranks.order("write", lambda _: (folder,))
        with self._ranks.exchange():
            write_sharded(folder, self.model, self.optimizer)

    def read(self, folder: Path, version: int) -> None:
        self._ranks.order("read", lambda _: (folder, version))
        if not self._sharded:
            super().read(folder, version)
            return
        with self._ranks.exchange():
            if is_sharded(folder):
                read_sharded(folder, self.model, self.optimizer)
            else:
                kept = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
                self._policy.read(folder)
                take_whole(self.model, self.optimizer, self._policy.model, kept)
        self.publish(version)


def shared_out(
    batches: Sequence[MicroBatch] | Sequence[Sequence[MicroBatch]],
    ranks: int,
    *,
    whole: bool = False,
) -> list[list[list[MicroBatch]]]:
    """Micro-batches of each optimiser step, by rank. They come longest first and are dealt in turn,
    so that ranks get similar loads.

    `whole`: keep all tokens of a trajectory on one rank, because the loss computes a value over all
    of them.
    """
    given = [batches] if all(isinstance(each, MicroBatch) for each in batches) else batches
    steps = [list(each) for each in cast("Sequence[Sequence[MicroBatch]]", given)]
    shares: list[list[list[MicroBatch]]] = [[] for _ in range(ranks)]
    for step in steps:
        parts = _by_trajectories(step) if whole else [[batch] for batch in step]
        for rank in range(ranks):
            shares[rank].append([batch for part in parts[rank::ranks] for batch in part])
    return shares


def _by_trajectories(batches: Sequence[MicroBatch]) -> list[list[MicroBatch]]:
    """Group micro-batches that share tokens of a trajectory."""
    parts: list[tuple[set[int], list[MicroBatch]]] = []
    for batch in batches:
        sequences = set(batch.sequences_K.tolist())
        together = [batch]
        for part in [each for each in parts if each[0] & sequences]:
            parts.remove(part)
            sequences = sequences | part[0]
            together = part[1] + together
        parts.append((sequences, together))
    return [together for _, together in parts]


_OVER = "over"


def led(ranks: Ranks, config: GrpoConfig, folder: Path) -> RankLearner:
    """Build the learner of rank 0, and order the others to build theirs."""
    digests = digests_of(config)
    ranks.order("begin", lambda _: (config, digests))
    return RankLearner(config, ranks, folder)


async def follow(ranks: Ranks) -> None:
    """Follow the orders of rank 0 until the training ends. Raises `RunError` if rank 0 ends early
    without a message.

    If rank 0 has reported an error, rank 0 prints it, and this process ends with exit code 1.
    """
    leader = ranks.links[0]
    orders: asyncio.Queue[Message] = asyncio.Queue()
    leader.hear(orders.put_nowait, lambda: orders.put_nowait((_OVER,)))
    learner: RankLearner | None = None
    rollouts: asyncio.Queue[Message] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        while True:
            kind, *rest = await orders.get()
            if kind == "begin":
                config, digests = rest
                refuse_other_parts(config, digests, "of rank 0")
                learner = RankLearner(config, ranks)
            elif kind == "end":
                break
            elif kind == _OVER:
                if leader.failure is not None:
                    sys.exit(1)
                raise ranks.ended(0)
            elif learner is None:
                raise RunError(
                    f"Rank 0 sent the order {kind!r} before the training began.",
                    "Start all ranks with the same version of hrm-agent.",
                )
            elif kind == "open":
                setup = pickle.loads(rest[0])  # noqa: S301 - only rank 0 can write it
                runs = await stack.enter_async_context(
                    opened_rollouts(setup, leader, learner.engine)
                )
                serving = asyncio.create_task(runs.serve(rollouts))
                stack.push_async_callback(_end, serving, rollouts)
                stack.enter_context(frozen_heap())
            elif kind in ("run", "stop"):
                rollouts.put_nowait((kind, *rest))
            else:
                # all ranks do this at the same time; it blocks everything else in this process
                operations: dict[str, Callable[..., Any]] = {
                    "update": learner.update,
                    "read": learner.read,
                    "write": learner.write,
                    "afresh": learner.begin_optimizer_afresh,
                }
                operations[kind](*rest)
    if learner is not None and "engine" in learner.__dict__:
        learner.engine.close()


async def _end(serving: asyncio.Task[None], rollouts: asyncio.Queue[Message]) -> None:
    """Cancel rollouts in progress. A later run resumes them from the record."""
    rollouts.put_nowait((_OVER,))
    await serving
