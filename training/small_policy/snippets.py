"""Output of the python tool for a snippet of this package, without running the tool.

A cold start shows some thousands of calls. Their code is written by this package and harmless, so
it runs in this process. The text goes through the tool's own formatter. Never use it for code that
a policy wrote.
"""

from __future__ import annotations

import linecache
import traceback

from hrm_agent.environment import ExecutionResult
from hrm_agent.environment.sandbox.protocol import SNIPPET
from hrm_agent.tools.python_tool import tool_content
from hrm_agent.training.tasks.word_problems import snippet_value
from hrm_agent.trajectory import ToolStatus

__all__ = ["tool_text"]


def tool_text(code: str) -> str:
    """Content of the tool message that answers a call with this code, to the byte."""
    try:
        result = ExecutionResult(ToolStatus.OK, value=snippet_value(code))
    except Exception as error:
        result = ExecutionResult(ToolStatus.ERROR, stderr=_traceback(code, error))
    return tool_content(result)


def _traceback(code: str, error: Exception) -> str:
    """Traceback as the sandbox writes it: with the snippet's own frames and source lines."""
    linecache.cache[SNIPPET] = (len(code), None, code.splitlines(keepends=True), SNIPPET)
    report = traceback.TracebackException.from_exception(error)
    report.stack = traceback.StackSummary.from_list(
        [frame for frame in report.stack if frame.filename == SNIPPET]
    )
    return "".join(report.format())
