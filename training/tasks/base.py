"""A task: a prompt and a way to verify an answer.

The verifier runs in the trainer's process, or in a child of it, and never in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.trajectory import TaskRef

__all__ = ["Task", "Verifier"]

Verifier = Callable[[str], float]
"""Text of the model's own final message -> reward in [0, 1]. Must not raise on any text."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem."""

    id: str
    """Unique within its family."""
    family: str
    """The string that names the family, as given to `--tasks`."""
    prompt: str
    """What the graph is asked, as text."""
    verify: Verifier = field(compare=False, repr=False)
    """Scores a final text, in the trainer's process."""
    answer: str | None = None
    """The reference answer, where there is one."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """What else the family says of the task; stored as JSON."""

    def ref(self) -> TaskRef:
        """The part that is stored with a trajectory."""
        return TaskRef(id=self.id, family=self.family, prompt=self.prompt, answer=self.answer, metadata=self.metadata)
