"""Journal of a store: whole trajectories, draws and overlays.

Draws are the values that nodes took from the clock, `uuid` and `random`. Each attempt of a task
that drew anything has one row.

Overlays are judgements by training runs, one row for each trajectory of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hrm_agent.errors import StoreError
from hrm_agent.store.database.cursors import WriteCursor
from hrm_agent.store.database.fencing import WrittenCall
from hrm_agent.store.journal.model_calls import ModelCalls
from hrm_agent.store.journal.records import HEADERS, TOOL_CALLS
from hrm_agent.store.journal.tool_calls import ToolCalls
from hrm_agent.store.values.damage import OnDamage
from hrm_agent.store.values.sent_requests import copies_of
from hrm_agent.trajectory import (
    Call,
    Overlay,
    RunStatus,
    TaskDraws,
    ToolCall,
    Trajectory,
)

if TYPE_CHECKING:
    from hrm_agent.store.values.serializer import StrictSerializer

__all__ = ["StoreJournal"]


class StoreJournal(ModelCalls, ToolCalls):
    """Journal of a run store. Every write is committed when it returns, except draws and a run's
    joined steps.
    """

    @property
    def serializer(self) -> StrictSerializer:
        """Serializer of the store's checkpoints."""
        return self._requests().serializer

    # draws

    def draws_of_thread(self, thread_id: str) -> list[TaskDraws]:
        """Draws of a thread's tasks, in no order."""
        return self._draws.read("thread_id = ?", (thread_id,))

    def draws_of(self, header: Trajectory) -> list[TaskDraws]:
        """Draws of a run's tasks. For a fork, also those of the lineage that it inherited."""
        left = [
            draws
            for thread, steps in self.threads_behind(header)
            for draws in self.draws_of_thread(thread)
            if draws.identity.step in steps
        ]
        return left + self.draws_of_thread(header.thread_id)

    def write_draws(
        self, thread_id: str, key: tuple[str, int], record: Callable[[], TaskDraws]
    ) -> None:
        """Write the draws of a task with the next commit. They replace a previous row of the same
        key.
        """
        self._database.defer(
            lambda cursor: self._draws.insert(cursor, record(), thread_id, *key), thread_id
        )

    # overlays

    def write_overlays(self, overlays: Sequence[Overlay]) -> None:
        """Write the judgements of one training step, in one transaction."""
        rows = [self._overlays.row(o, o.run_id, o.trajectory_id, step=o.step) for o in overlays]

        def write(cursor: WriteCursor) -> None:
            if rows:
                cursor.executemany(rows[0][0], [values for _, values in rows])

        self._database.add(write)

    def overlays(self, run_id: str, step: int | None = None) -> list[Overlay]:
        """Judgements of one training run by step, or of one step only."""
        which, values = ("", (run_id,)) if step is None else (" AND step = ?", (run_id, step))
        return self._overlays.read(f"run_id = ?{which}", values)

    # trajectories

    def find_trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory | None:
        """Trajectory with its calls, by its own id or its thread's (None if missing). `requests`
        includes the requests of the calls.

        A thread that this process holds is answered from memory if it is known in full.
        """
        if (held := self._database.held.of(trajectory_id)) is not None and (
            all_ := held.everything()
        ) is not None:
            return self._as_read(*all_)
        both = (trajectory_id, trajectory_id)
        return next(self._trajectories("id = ? OR thread_id = ?", both, requests=requests), None)

    def _as_read(
        self,
        header: bytes,
        calls: Mapping[str, WrittenCall],
        tool_calls: Iterable[tuple[str, bytes]],
    ) -> Trajectory:
        """Trajectory as it would be read back, from what this process wrote."""
        read: list[Call] = []
        # values that several calls share are copied once, for this trajectory alone
        copied: dict[int, Any] = {}
        for id_, written in calls.items():
            shown = {"request": written.request, "tools": written.tools}
            known = {
                name: copies_of(value, copied) for name, value in shown.items() if value is not None
            }
            read.append(self._read_call(id_, *written.row).model_copy(update=known))
        tools = [TOOL_CALLS.opened(self._cipher, row[:1], row[1]) for row in tool_calls]
        return _with(HEADERS.load(header), read, tools)

    def trajectory(self, trajectory_id: str, *, requests: bool = True) -> Trajectory:
        """Trajectory with its calls, by its own id or its thread's. Raises `StoreError` if it is
        missing.
        """
        found = self.find_trajectory(trajectory_id, requests=requests)
        if found is None:
            raise StoreError(
                f"There is no trajectory {trajectory_id!r} in {self._database.url}.",
                f"`hrm-agent history --store {self._database.url}` lists what there is.",
            )
        return found

    def trajectories(
        self,
        *,
        run_id: str | None = None,
        group_id: str | None = None,
        status: RunStatus | None = None,
        on_damage: OnDamage | None = None,
        requests: bool = True,
        newest_first: bool = False,
    ) -> Iterator[Trajectory]:
        """Trajectories with their calls, in the order in which they started, or reversed.

        `on_damage` is called for an unreadable trajectory, which is then left out. By default
        `StoreError` is raised. `requests` includes the requests of the calls.
        """
        wanted = {
            "run_id": run_id,
            "group_id": group_id,
            "status": status.value if status else None,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1 = 1"
        values = tuple(given.values())
        return self._trajectories(
            where, values, on_damage, requests=requests, newest_first=newest_first
        )

    def forks_of(self, trajectory_id: str) -> list[Trajectory]:
        """Forks of a trajectory, in the order in which they started."""
        return list(self._trajectories("origin = ?", (trajectory_id,)))

    def _trajectories(
        self,
        where: str,
        values: Sequence[Any],
        on_damage: OnDamage | None = None,
        *,
        requests: bool = True,
        newest_first: bool = False,
    ) -> Iterator[Trajectory]:
        headers = self.headers(where, values, on_damage)
        for header in reversed(headers) if newest_first else headers:
            try:
                whole = self.with_calls(header, requests=requests)
            except StoreError as error:
                if on_damage is None:
                    raise
                on_damage(header.id, error)
                continue
            yield whole

    def with_calls(self, header: Trajectory, *, requests: bool = True) -> Trajectory:
        """Add the calls to a trajectory that `headers` returned. `requests` includes their
        requests.
        """
        own_calls = self._calls("c.thread_id = ?", (header.thread_id,), requests=requests)
        own_tools = self._tool_call_rows.read("thread_id = ?", (header.thread_id,))
        calls: list[Call] = []
        tool_calls: list[ToolCall] = []
        # a fork inherits the calls of the steps before the checkpoint it started from
        for thread, steps in self.threads_behind(header):
            of_thread = self._calls("c.thread_id = ?", (thread,), requests=requests)
            calls += [call for call in of_thread if call.identity.step in steps]
            tools = self._tool_call_rows.read("thread_id = ?", (thread,))
            tool_calls += [tool for tool in tools if tool.identity.step in steps]
        return _with(header, calls + own_calls, tool_calls + own_tools)


def _with(header: Trajectory, calls: Sequence[Call], tool_calls: Iterable[ToolCall]) -> Trajectory:
    """Trajectory with its calls, split into answered and failed ones."""
    apart = {
        "calls": tuple(call for call in calls if call.error is None),
        "tool_calls": tuple(tool_calls),
        "failed_calls": tuple(call for call in calls if call.error is not None),
    }
    return header.model_copy(update=apart)
