"""Groups of trajectories that share prefixes, and the rows that a step makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hrm_agent.training.update.batch import Row, linearise
from hrm_agent.trajectory import Call, Sampling, Trajectory
from tests.support.training.builders import VOCABULARY, sampled_call, trajectory

__all__ = ["four_roles", "rows_of", "tool_loops"]


def tool_loops(seed: int, groups: int = 2, siblings: int = 4) -> list[Trajectory]:
    """Siblings with one prompt, a sampled turn that two of them have in common, a tool response and
    an answer.

    The last two siblings of a group are equal to the last token.
    """
    rng = random.Random(seed)
    made: list[Trajectory] = []
    for _ in range(groups):
        prompt, turns = _tokens(rng, 9), [_tokens(rng, 5) for _ in range(siblings)]
        turns[1] = turns[0]
        rest = [(_tokens(rng, 3), _tokens(rng, rng.randint(1, 6))) for _ in range(siblings)]
        turns[-1], rest[-1] = turns[-2], rest[-2]
        for turn, (response, answer) in zip(turns, rest, strict=True):
            index = len(made)
            first = sampled_call(f"{index}a", [*prompt, *turn], len(prompt))
            second = sampled_call(f"{index}b", [*response, *answer], len(response), first.id)
            made.append(trajectory(index, calls=(first, second)))
    return made


def four_roles(seed: int, siblings: int = 3) -> list[Trajectory]:
    """A planner, solvers with one instruction, of which one forks, a critic and a synthesizer. Each
    is a separate root.
    """
    rng = random.Random(seed)
    roles = {name: _tokens(rng, 7) for name in ("planner", "solver", "critic", "synthesizer")}
    made: list[Trajectory] = []
    for index in range(siblings):
        calls: list[Call] = []
        for role, instruction in roles.items():
            for copy in range(2 if role == "solver" else 1):
                name = f"{index}{role}{copy}"
                calls.append(
                    sampled_call(
                        name, [*instruction, *_tokens(rng, rng.randint(1, 6))], len(instruction)
                    )
                )
                if role == "solver":
                    calls += [
                        sampled_call(f"{name}{fork}", _tokens(rng, 5), 2, name)
                        for fork in range(copy + 1)
                    ]
        made.append(trajectory(index, calls=tuple(calls)))
    return made


def rows_of(
    trajectories: Sequence[Trajectory], temperatures: Sequence[float] = (1.0,)
) -> list[Row]:
    """Rows of the trajectories. Each trajectory has another weight; the temperatures take turns."""
    rows: list[Row] = []
    for number, each in enumerate(trajectories):
        sampling = Sampling(temperature=temperatures[number % len(temperatures)])
        calls = tuple(call.model_copy(update={"sampling": sampling}) for call in each.calls)
        changed = each.model_copy(update={"calls": calls})
        rows += linearise(
            changed, {call.id: (-1.0) ** number * (1 + number / 7) for call in calls}, number
        )
    return rows


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]
