"""Steps whose rollouts run while the weights are still those of earlier steps.

With `versions_behind` = k, a step is begun together with the k steps after it, so that the engine
samples while the learner trains. Step n trains the weights of version n, and none of its rollouts
begins before version n - k is in use; so no token is more than k versions old. Each call records
the version that sampled its tokens. The loss corrects for the version
(`hrm_agent.training.update.objectives`), and leaves out tokens that are older than the bound.

A rollout may be sampled by several versions. When weights are published, its replies in progress
end or are requested again, and its next replies use the new weights (AReaL, arXiv 2505.24298, calls
such rollouts interruptible). The begun steps are part of each checkpoint (`RunProgress.begun`), and
the names of threads identify them. So a resumed run finds the rollouts that had ended, and resumes
the others.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.rollout.groups import Collector, Groups
from hrm_agent.training.rollout.source import StepPlan

__all__ = ["StepsUnderWay", "with_bound"]


def with_bound(config: GrpoConfig) -> GrpoConfig:
    """Configuration of the learner, in which `max_staleness` leaves out tokens that are older than
    the run allows.
    """
    behind = config.rollout.versions_behind
    given = config.loss.max_staleness
    if not behind:
        return config
    # a rollout that is carried over is trained on one version later
    most = behind + config.rollout.carry_over
    bound = most if given is None else min(most, given)
    return config.model_copy(
        update={"loss": config.loss.model_copy(update={"max_staleness": bound})}
    )


class StepsUnderWay:
    """Running groups of a step and of the steps after it. At exit, groups that still run are
    cancelled.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._open: dict[int, tuple[AsyncExitStack, Groups]] = {}

    @asynccontextmanager
    async def groups(self, plan: StepPlan, coming: Iterable[StepPlan]) -> AsyncGenerator[Groups]:
        """Yield the groups of a step. They, and the groups of the `coming` steps, are begun unless
        they already run.
        """
        for each in (plan, *coming):
            if each.step not in self._open:
                async with AsyncExitStack() as begun:
                    running = self._collector.groups(
                        f"step-{each.step}", each.config, each.tasks, step=each.step
                    )
                    groups = await begun.enter_async_context(running)
                    self._open[each.step] = begun.pop_all(), groups
        stack, groups = self._open.pop(plan.step)
        async with stack:
            yield groups

    def share_busy(self, since: float) -> float:
        """Share of the time from `since` (`time.monotonic`) until now in which a group of a coming
        step was running.

        The share is valid only if no step was begun in that time.
        """
        now = time.monotonic()
        busy_until = max(
            (groups.busy_until(now) for _, groups in self._open.values()), default=since
        )
        return max(0.0, busy_until - since) / (now - since) if now > since else 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async with AsyncExitStack() as every:
            for stack, _ in self._open.values():
                every.push_async_exit(stack)
            self._open.clear()
