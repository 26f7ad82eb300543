"""Task: a prompt, and a verifier of answers if there is one.

A verifier runs in the trainer's process or in a child process, never in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.trajectory import TASK_INPUTS, TaskRef, Trajectory

__all__ = ["Task", "Verifier"]

Verifier = Callable[[str], float | Mapping[str, float]]
"""Function (text of the model's final message) -> reward in [0, 1]. It must not raise an error for
any text.

It may also return several numbers by name: the reward as `correct`, and others that evaluations
report. `part per whole` is reported as the sum of these numbers over the sum of the numbers `whole`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Single problem."""

    prompt: str
    """Prompt for the graph, as text."""
    id: str = ""
    """Identifier, unique within its family. If it is empty in a user's list, it is derived from the
    content.
    """
    family: str = ""
    """Name of the family, as given to `--tasks`. For a user's list, it is set when the list is
    loaded.
    """
    verify: Verifier | None = field(default=None, compare=False, repr=False)
    """Verifier that scores a final text, in the trainer's process (None if correctness is not
    defined).
    """
    answer: str | None = None
    """Reference answer (None if there is none)."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Further data about the task, which is stored as JSON."""
    inputs: Mapping[str, Any] | None = field(default=None, compare=False)
    """Input of the graph, as JSON (None: a human message with the prompt)."""
    verify_run: Callable[[Trajectory], float | Mapping[str, float] | None] | None = field(
        default=None, compare=False, repr=False
    )
    """Verifier of a whole run, used in place of `verify` (None if the final text is sufficient). It
    returns None for a run that it cannot judge, such as one whose environment failed.
    """

    def ref(self) -> TaskRef:
        """Part of the task that is stored with a trajectory: everything except verifiers."""
        inputs = {} if self.inputs is None else {TASK_INPUTS: dict(self.inputs)}
        metadata = {**self.metadata, **inputs}
        return TaskRef(
            id=self.id,
            family=self.family,
            prompt=self.prompt,
            answer=self.answer,
            metadata=metadata,
        )
