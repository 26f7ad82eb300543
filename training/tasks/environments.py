"""Tasks that are played in environments of other projects: `openenv:PLACE?...`, and `verifiers:NAME`
for the v1 interface of verifiers.

A task is the first observation of an episode: its prompt, and the tools. OpenEnv's environments
have no list of tasks, so a task is a seed, and `--count` says how many. The same seed must begin the
same episode, which is tried with the first one. verifiers' tasks are the rows of a taskset.

The reward is the return of the episode, read from the record. If the environment failed, the run
has no reward: it is neither right nor wrong.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus

from hrm_agent.errors import TaskError
from hrm_agent.tools.task_environments.play import (
    TaskEnvironment,
    acts_of,
    allow_environment,
    digest_of,
)
from hrm_agent.tools.task_environments.sessions import OpenSession, background
from hrm_agent.tools.task_environments.source import EnvironmentSource, parse_source
from hrm_agent.tools.task_environments.wire import ActRefusedError, EnvironmentFault, Observed
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.items import tasks_of_items
from hrm_agent.training.tasks.spec import read_parameters
from hrm_agent.trajectory import (
    TASK_INPUTS,
    TaskRef,
    ToolStatus,
    Trajectory,
    content_hash,
    derive_seed,
)

__all__ = ["EpisodeReturn", "load_episodes", "load_openenv", "placed_interpreter", "played_source"]

_AT_A_TIME = 4
"""Number of episodes that are begun at a time while tasks are loaded."""
_SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class EpisodeReturn:
    """Verifier of a run by what its environment gave."""

    source: EnvironmentSource
    """Environment of the run."""

    def __call__(self, trajectory: Trajectory) -> dict[str, float] | None:
        """Rewards of a run: `correct` from 0 to 1, and the environment's own (None if a call was
        lost). Raises `ValueError` for a return outside of the source's range.

        An episode that neither the environment nor `steps` has ended has the reward 0: a policy
        must not gain by giving up before it can lose.
        """
        if any(call.status is ToolStatus.INFRASTRUCTURE for call in trajectory.own_tool_calls):
            return None
        act = next(reversed(acts_of(trajectory)), None)
        if act is None or not act["done"]:
            return {"correct": 0.0}
        total = float(act["total"])
        own = {f"environment_{name}": float(value) for name, value in act["rewards"].items()}
        reward = self.source.reward(total)
        return {"correct": reward, "environment_return": total, **own}


def load_openenv(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load `count` tasks of an environment of OpenEnv, each a seed."""
    read_parameters(spec.partition("?")[2])  # refuses secrets
    return load_episodes(
        f"openenv:{_placed(placed_interpreter(spec, folder), folder)}",
        split=split,
        seed=seed,
        count=count,
        shown=spec,
    )


def load_episodes(
    text: str, *, split: str, seed: int, count: int | None, shown: str = ""
) -> list[Task]:
    """Load at most `count` tasks of the environment that `text` names. `shown`: its name in the
    family of the tasks, after the kind (empty: as in `text`).

    Raises `TaskError` if the environment does not answer, or begins differently each time.
    """
    source = parse_source(text)
    if source.kind == "openenv" and count is None:
        raise TaskError(
            "An environment of OpenEnv has no list of tasks.", "Say how many: --count N."
        )
    try:
        begun = background().run(_begun(source, split=split, seed=seed, count=count))
    except (EnvironmentFault, ActRefusedError) as error:
        raise TaskError(
            f"The tasks of {text} cannot be loaded: {str(error).rstrip('.')}.",
            "docs/tasks.md shows how its server is started or named.",
        ) from error
    allow_environment(text)
    family = f"{source.kind}:{shown or text.partition(':')[2]}"
    tasks = [_task(text, source, arguments, seen) for arguments, seen in begun]
    return tasks_of_items(family, tasks, {"split": split, "seed": seed, "count": count})


async def _begun(
    source: EnvironmentSource, *, split: str, seed: int, count: int | None
) -> list[tuple[dict[str, Any], Observed]]:
    """Arguments and first observation of each task."""
    if source.kind == "verifiers":
        numbers = await _places(source, split=split, seed=seed, count=count)
        asked: list[dict[str, Any]] = [{"index": number} for number in numbers]
    else:
        asked = [
            {**source.arguments, "seed": derive_seed(seed, "openenv", split, place) % _SEEDS}
            for place in range(count or 0)
        ]
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def begin(arguments: dict[str, Any]) -> Observed:
        async with gate:
            session = OpenSession(source)
            try:
                return await session.reset(arguments)
            finally:
                await session.close()

    for arguments in asked[:1]:
        if digest_of(await begin(arguments)) != digest_of(await begin(arguments)):
            raise EnvironmentFault(
                "It begins differently each time, although it is given the same"
                f" {'row' if source.kind == 'verifiers' else 'seed'}."
            )
    return list(zip(asked, await asyncio.gather(*map(begin, asked)), strict=True))


async def _places(
    source: EnvironmentSource, *, split: str, seed: int, count: int | None
) -> list[int]:
    """Places of the rows of a taskset. An endless one has the odd rows for evaluations."""
    size = await OpenSession(source).count()
    if size is None:
        if count is None:
            raise TaskError(
                f"The taskset {source.place} is endless.", "Say how many tasks: --count N."
            )
        return [2 * place + (split == "eval") for place in range(count)]
    order = random.Random(derive_seed(seed, "verifiers", split)).sample(range(size), size)
    return order[:count]


def _task(text: str, source: EnvironmentSource, arguments: dict[str, Any], seen: Observed) -> Task:
    said = [message["content"] for message in seen.messages if message["role"] == "user"]
    if not said:
        raise TaskError(f"{text} begins without a message.", "Such environments are not supported.")
    environment: TaskEnvironment = {
        "source": text,
        "arguments": arguments,
        "tools": list(seen.tools),
        "begin": digest_of(seen),
    }
    messages = [dict(message) for message in seen.messages]
    return Task(
        prompt=said[-1],
        id=content_hash("episode", source.place, arguments)[:16],
        inputs={"messages": messages, "environment": environment},
        verify_run=EpisodeReturn(source),
    )


def played_source(task: TaskRef) -> EnvironmentSource | None:
    """Environment of a recorded task (None if it has none, or if its record is invalid)."""
    inputs = task.metadata.get(TASK_INPUTS)
    named: Any = inputs.get("environment") if isinstance(inputs, dict) else None
    try:
        return parse_source(named["source"]) if named else None
    except (TaskError, KeyError, TypeError, AttributeError):
        return None


def placed_interpreter(spec: str, folder: Path | None) -> str:
    """Spec with a relative `python=` resolved in `folder`. Links are kept, since the link's place
    is what makes an interpreter a virtual environment's.
    """
    place, sign, query = spec.partition("?")
    parts = query.split("&")
    for number, part in enumerate(parts):
        name, _, value = part.partition("=")
        path = Path(unquote_plus(value)).expanduser()
        if name == "python" and "/" in value and not path.is_absolute():
            parts[number] = f"python={quote(str(Path(folder or '', path).absolute()))}"
    return f"{place}{sign}{'&'.join(parts)}"


def _placed(spec: str, folder: Path | None) -> str:
    """Spec with a relative folder resolved in `folder`, so that each process finds it."""
    place, sign, query = spec.partition("?")
    is_folder = "://" not in place and ("/" in place or place.startswith("."))
    if not is_folder:
        return spec
    return f"{Path(folder or '', Path(place).expanduser()).resolve()}{sign}{query}"
