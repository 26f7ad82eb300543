"""Steps whose rollouts are under way while the weights are still those of earlier steps.

With `versions_behind` = k, a step is begun together with the k steps after it, so that the engine
samples while the learner learns. The bound holds by what is begun when: step n trains the weights
of version n, and none of its rollouts begins before version n - k is in force. Which version
sampled a token, its call says; the loss weighs it accordingly
(`hrm_agent.training.update.objectives.correction`), and leaves out any that is older all the same.

A rollout may see several versions: when weights are published its replies under way end, or are
asked for again, and the next ones are by the new weights (AReaL, arXiv 2505.24298, calls such
rollouts interruptible). The steps that are under way are part of each checkpoint
(`RunProgress.begun`), and the names of their threads say which they are: a run that was killed
finds what had ended, and goes on with the rest.
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
    """The configuration of the learner:
    no token is trained on that is older than the run allows.
    """
    behind, given = config.rollout.versions_behind, config.loss.max_staleness
    if not behind:
        return config
    # what is carried over is trained on one version later
    most = behind + config.rollout.carry_over
    bound = most if given is None else min(most, given)
    return config.model_copy(
        update={"loss": config.loss.model_copy(update={"max_staleness": bound})}
    )


class StepsUnderWay:
    """The groups of a step, and those of the steps that come after it. What is under way at the end
    is cancelled.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._open: dict[int, tuple[AsyncExitStack, Groups]] = {}

    @asynccontextmanager
    async def groups(self, plan: StepPlan, coming: Iterable[StepPlan]) -> AsyncGenerator[Groups]:
        """The groups of a step, begun with those of the `coming` steps unless they are under way
        already.
        """
        for each in (plan, *coming):
            if each.step not in self._open:
                await self._begin(each)
        stack, groups = self._open.pop(plan.step)
        async with stack:
            yield groups

    async def _begin(self, plan: StepPlan) -> None:
        async with AsyncExitStack() as stack:
            begun = self._collector.groups(
                f"step-{plan.step}", plan.config, plan.tasks, step=plan.step
            )
            groups = await stack.enter_async_context(begun)
            self._open[plan.step] = stack.pop_all(), groups

    def share_busy(self, since: float) -> float:
        """Of the time from `since` (`time.monotonic`) until now, the share in which a coming step
        was under way.

        Nothing was begun meanwhile.
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
