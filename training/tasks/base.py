"""A task: a prompt, and a way to verify an answer where it has one.

The verifier runs in the trainer's process, or in a child of it, and never in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.trajectory import TASK_INPUTS, TaskRef, Trajectory

__all__ = ["Task", "Verifier"]

Verifier = Callable[[str], float]
"""Text of the model's own final message -> reward in [0, 1]. Must not raise on any text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem."""

    prompt: str
    """What the graph is asked, as text."""
    id: str = ""
    """Unique within its family; empty in a list of one's own: made of the content."""
    family: str = ""
    """The string that names the family, as given to `--tasks`, which fills it in for a list of
    one's own.
    """
    verify: Verifier | None = field(default=None, compare=False, repr=False)
    """Scores a final text, in the trainer's process; None:
    the task says nothing of what is right.
    """
    answer: str | None = None
    """The reference answer, where there is one."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """What else the family says of the task; stored as JSON."""
    inputs: Mapping[str, Any] | None = field(default=None, compare=False)
    """What the graph's input is, as JSON, in place of a human message with the prompt; None: that
    message.
    """
    verify_run: Callable[[Trajectory], float] | None = field(
        default=None, compare=False, repr=False
    )
    """Scores a whole run, in place of `verify`; None: the final text says all."""

    def ref(self) -> TaskRef:
        """The part that is stored with a trajectory."""
        inputs = {} if self.inputs is None else {TASK_INPUTS: dict(self.inputs)}
        metadata = {**self.metadata, **inputs}
        return TaskRef(
            id=self.id,
            family=self.family,
            prompt=self.prompt,
            answer=self.answer,
            metadata=metadata,
        )
