"""Messages for commands that were interrupted, or whose process the graph ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from hrm_agent.errors import RunError

__all__ = ["resumed_by"]


@contextmanager
def resumed_by(command: str) -> Generator[None]:
    """Attach `command`, which resumes the work, to a KeyboardInterrupt inside the block.

    Raises `RunError` instead of SystemExit, since a graph must not end the command as if the
    command had succeeded.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.args = (command,)
        raise
    except SystemExit as exit_:
        code = "" if exit_.code is None else repr(exit_.code)
        raise RunError(
            f"The graph, or code that it called, tried to end this process by sys.exit({code}).",
            "Raise an exception there instead. Then only its run fails, and other runs go on."
            f" What was recorded is kept. Resume it: `{command}`.",
        ) from exit_
