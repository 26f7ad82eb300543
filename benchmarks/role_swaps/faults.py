"""Engine that makes faults of known size in the roles of the hierarchical graph.

The answers are those of the engine behind it, in which a share is made wrong:

* plan: the last subgoal is left out (of a plan with several);
* solve: the value is another number of as many digits;
* critique: flawed results are accepted;
* synthesize: the final text has another number.

Whether an answer is made wrong follows from the seed of its request, so that it is the same in every
run.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.training.small_policy.traces import wrong_number
from hrm_agent.trajectory import FinishReason, derive_seed

ROLES = ("plan", "solve", "critique", "synthesize")
Rates = Mapping[str, float]
"""Share of wrong answers by role."""


class FaultyEngine:
    """Engine whose answers are made wrong at known rates."""

    def __init__(self, engine: Any, rates: Rates) -> None:
        self._engine = engine
        self._rates = rates
        self.name = f"{engine.name} with faults"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        given: Future[Completion] = Future()
        given.set_running_or_notify_cancel()
        rng = random.Random(derive_seed(request.sampling.seed or 0, "fault", request.role))
        due = rng.random() < self._rates.get(request.role, 0.0)

        def pass_on(answered: Future[Completion]) -> None:
            try:
                completion = answered.result()
                given.set_result(self._spoilt(completion, request.role, rng) if due else completion)
            except BaseException as error:
                given.set_exception(error)

        self._engine.submit(request).add_done_callback(pass_on)
        return given

    def _spoilt(self, completion: Completion, role: str, rng: random.Random) -> Completion:
        text = self._engine.codec.decode(completion.token_ids)
        wrong = spoilt(text, role, rng)
        if wrong == text:
            return completion
        tokens = tuple(self._engine.codec.encode_answer(wrong))
        return replace(
            completion,
            token_ids=tokens,
            logprobs=(0.0,) * len(tokens),
            finish_reason=FinishReason.STOP,
        )


def spoilt(text: str, role: str, rng: random.Random) -> str:
    """Answer of a role, made wrong (unchanged if it cannot be)."""
    if role in ("plan", "critique"):
        try:
            said = json.loads(text)
        except ValueError:
            return text
        if role == "critique":
            return json.dumps({"action": "accept"}) if isinstance(said, dict) else text
        subgoals = said.get("subgoals") if isinstance(said, dict) else None
        if not isinstance(subgoals, list) or len(subgoals) < 2:
            return text
        return json.dumps({"subgoals": subgoals[:-1]})
    if role == "solve" and "<answer>" not in text:
        return text  # a turn that calls a tool
    numbers = [*re.finditer(r"[0-9]+(?:\.[0-9]+)?", text)]
    if not numbers:
        return text
    last = numbers[-1]
    return f"{text[: last.start()]}{wrong_number(last[0], rng)}{text[last.end() :]}"
