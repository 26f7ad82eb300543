"""Messages after a command was interrupted, or ended by the graph itself."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from hrm_agent.errors import RunError

__all__ = ["resumed_by"]


@contextmanager
def resumed_by(command: str) -> Generator[None]:
    """Attach the command that resumes the work to an interrupt inside the block.

    Raises `RunError` instead of SystemExit: a graph must not end the command as if it had
    succeeded.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.args = (command,)
        raise
    except SystemExit as exit_:
        code = "" if exit_.code is None else repr(exit_.code)
        raise RunError(
            f"The graph, or what it called, ended this process: sys.exit({code}).",
            "Raise an exception there instead: its run fails, and others go on. What was recorded"
            f" is kept: `{command}`.",
        ) from exit_
