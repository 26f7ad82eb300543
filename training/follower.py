"""A rank that is led: it runs the rollouts that rank 0 hands to it, and takes part in each update.

It has a learner and an engine of its own, and the run's store open; of the run's folder it touches only what rank 0
names: a checkpoint that it reads, or, where weights are sharded, writes its share of.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hrm_agent.errors import RunError
from hrm_agent.frozen_heap import frozen_heap
from hrm_agent.training.configs import GrpoConfig
from hrm_agent.training.parallel import Ranks
from hrm_agent.training.rank_learner import RankLearner
from hrm_agent.training.worker_process import opened_rollouts
from hrm_agent.training.worker_wire import Message

__all__ = ["follow", "led"]

_OVER = "over"


def led(ranks: Ranks, config: GrpoConfig, folder: Path) -> RankLearner:
    """The learner of rank 0, with which the others make theirs."""
    ranks.order("begin", lambda _: (config,))
    return RankLearner(config, ranks, folder)


async def follow(ranks: Ranks) -> None:
    """Do what rank 0 says until the training ends. Raises `RunError` where that rank ended before it, and unsaid.

    Where it has told an error, it says the rest itself: this process ends with exit code 1.
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
                learner = RankLearner(rest[0], ranks)
            elif kind == "end":
                break
            elif kind == _OVER:
                if leader.failure is not None:
                    sys.exit(1)
                raise ranks.ended(0)
            elif learner is None:
                raise RunError(f"Rank 0 said {kind!r} before the training began.", "Start all ranks of one version.")
            elif kind == "open":
                setup = pickle.loads(rest[0])  # noqa: S301 - only rank 0 can write it
                runs = await stack.enter_async_context(opened_rollouts(setup, leader, learner.engine))
                serving = asyncio.create_task(runs.serve(rollouts))
                stack.push_async_callback(_end, serving, rollouts)
                stack.enter_context(frozen_heap())
            elif kind in ("run", "stop"):
                rollouts.put_nowait((kind, *rest))
            else:
                _train(learner, kind, *rest)
    if learner is not None and "engine" in learner.__dict__:
        learner.engine.close()


async def _end(serving: asyncio.Task[None], rollouts: asyncio.Queue[Message]) -> None:
    """Cancel what is under way: it is resumed from the record."""
    rollouts.put_nowait((_OVER,))
    await serving


def _train(learner: RankLearner, kind: str, *rest: Any) -> None:
    """A step that all ranks take together; nothing else goes on here meanwhile."""
    steps: dict[str, Callable[..., Any]] = {
        "update": learner.update,
        "read": learner.read,
        "write": learner.write,
        "afresh": learner.begin_optimizer_afresh,
    }
    steps[kind](*rest)
