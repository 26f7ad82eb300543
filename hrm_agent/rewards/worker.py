"""Process that runs a named rubric's functions: `python -m hrm_agent.rewards.worker`.

The parent process kills this process together with everything that a reward function has started.
This process unpickles requests, which only the parent can write. It answers in JSON, so that the
parent does not have to unpickle: a function may have changed this process in any way. Output of
functions goes to stderr.

The parent sends `("open", spec, folder)` once, then
`("score", job, rollouts, count, names, files)`. The rollouts are pickled separately, since a state
may hold objects that this process cannot unpickle. The answers are `{"opened": ...}`, and for every
name of a job `{"job", "began"}` before the function is called and `{"job", "name", "scores"}` after
it. So the parent knows which function hangs, or has ended the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hrm_agent.basics.worker_process import FrameSocket, parent_socket
from hrm_agent.errors import HrmError
from hrm_agent.import_by_name import import_by_name
from hrm_agent.rewards.calling import fault_score, scores_of
from hrm_agent.rewards.loading import load_rubric
from hrm_agent.rewards.rollout import Rollout
from hrm_agent.rewards.rubric import Rubric
from hrm_agent.trajectory import RewardFault

__all__ = ["main"]

_Send = Callable[[dict[str, Any]], None]


async def _serve(parent: FrameSocket) -> None:
    loop = asyncio.get_running_loop()
    frames = asyncio.Queue[tuple[Any, ...]]()
    owner = os.getpid()

    def send(answer: dict[str, Any]) -> None:
        if os.getpid() != owner:  # a function has forked, and this is its child
            os._exit(0)
        parent.send(json.dumps(answer).encode())

    def read() -> None:
        while frame := parent.receive():
            loop.call_soon_threadsafe(frames.put_nowait, pickle.loads(frame))  # noqa: S301 - only the parent can write it
        os.killpg(0, signal.SIGKILL)  # the parent, the only reader of answers, is gone

    first = await asyncio.to_thread(parent.receive)
    _, spec, folder = pickle.loads(first)  # noqa: S301 - only the parent can write it
    try:
        rubric, _ = load_rubric(spec, folder)
    except HrmError as error:
        send({"error": [error.message, error.hint]})
        return
    send({"opened": True})
    threading.Thread(target=read, daemon=True).start()
    running: set[asyncio.Task[None]] = set()
    while True:
        _, job, data, count, names, files = await frames.get()
        try:
            rollouts = _loaded(data, files, folder)
        except Exception as error:  # raised by a user's type
            reason = (
                f"what it looks at cannot be read in its process: {type(error).__name__}: {error}"
            )
            for reward in (part for part in rubric.parts if part.name in names):
                shown = fault_score(reward, RewardFault.RAISED, reason).model_dump(mode="json")
                send(
                    {
                        "job": job,
                        "name": reward.name,
                        "scores": [shown] * count,
                        "left_behind": False,
                    }
                )
            continue
        task = asyncio.create_task(_score(rubric, job, rollouts, names, send))
        running.add(task)
        task.add_done_callback(running.discard)


def _loaded(data: bytes, files: Sequence[str], folder: str) -> Sequence[Rollout]:
    """Unpickle rollouts. `files`: files that the parent has imported by path, since a state may
    hold objects of their classes.
    """
    try:
        return pickle.loads(data)  # noqa: S301 - only the parent can write it
    except ModuleNotFoundError:
        for file in files:
            with suppress(Exception):  # the second attempt reports a missing module
                import_by_name(file, folder)
        return pickle.loads(data)  # noqa: S301 - only the parent can write it


async def _score(
    rubric: Rubric, job: int, rollouts: Sequence[Rollout], names: Sequence[str], send: _Send
) -> None:
    """Call the functions one after the other, so that only one function of a job runs at a time."""
    for reward in (part for part in rubric.parts if part.name in names):
        send({"job": job, "began": reward.name})
        try:
            scores = await scores_of(rubric, reward, rollouts)
        except HrmError as error:
            send({"job": job, "error": [error.message, error.hint]})
            return
        shown = [score.model_dump(mode="json") for score in scores]
        left_behind = any(score.fault is RewardFault.TIMEOUT for score in scores) or _has_children()
        send({"job": job, "name": reward.name, "scores": shown, "left_behind": left_behind})


def _has_children() -> bool:
    """True if a process that a function has started still exists. The check is one system call,
    however many threads and children there are.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def main() -> None:
    """Serve the parent until it is gone."""
    asyncio.run(_serve(parent_socket()))


if __name__ == "__main__":
    main()
