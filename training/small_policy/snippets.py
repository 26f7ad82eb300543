"""Output of the python tool for a snippet of this package, without running the tool.

The demonstrations of a cold start have thousands of tool calls. This package writes their code,
which is harmless, so the code runs in this process. The tool's formatter makes the text of the
output. Never use this module for code that a policy wrote.
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
    """Content of the tool message that answers a call with this code, equal to the byte."""
    try:
        result = ExecutionResult(ToolStatus.OK, value=snippet_value(code))
    except Exception as error:
        result = ExecutionResult(ToolStatus.ERROR, stderr=_traceback(code, error))
    return tool_content(result)


def _traceback(code: str, error: Exception) -> str:
    """Traceback as the sandbox writes it: with the snippet's frames and source lines only."""
    linecache.cache[SNIPPET] = (len(code), None, code.splitlines(keepends=True), SNIPPET)
    report = traceback.TracebackException.from_exception(error)
    report.stack = traceback.StackSummary.from_list(
        [frame for frame in report.stack if frame.filename == SNIPPET]
    )
    return "".join(report.format())
