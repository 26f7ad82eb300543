"""Answer by its path in the final state: `report`, `result.text`, `drafts.-1`,
`$.sections[0].title`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langgraph.pregel import Pregel

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.langgraph_format import is_internal
from hrm_agent.models.call_recording import plain

__all__ = ["check_answer_path", "text_at"]

_FORM = re.compile(r"\$?(\.?[^.\[\]]+|\[[^\[\]]+\])+")


def check_answer_path(graph: Pregel[Any, Any, Any, Any], path: str) -> None:
    """Raise `ConfigError` for an invalid path, and if the graph's state has no such first field."""
    if path and _FORM.fullmatch(path) is None:
        raise ConfigError(
            f"{path!r} is not a path in a state.",
            "Write it as report, result.text or sections[0].title.",
        )
    fields = [name for name in graph.channels if not is_internal(name)]
    first = (_parts(path) or [""])[0]
    if path and first not in fields and getattr(graph, "builder", None) is not None:
        raise ConfigError(
            f"The state of the graph has no field {first!r}. {nearest(first, fields)}".strip(),
            f"Its fields: {', '.join(fields)}.",
        )


def text_at(state: Mapping[str, Any], path: str) -> str | None:
    """Text at `path`: the text of a message, the JSON of any other value (None if the value is
    missing).
    """
    value: Any = state
    for part in _parts(path):
        value = _within(value, part)
    if value is None or isinstance(value, str):
        return value
    return (
        value.text
        if isinstance(value, BaseMessage)
        else json.dumps(plain(value), ensure_ascii=False)
    )


def _parts(path: str) -> list[str]:
    """Names and numbers of a path, in either notation."""
    dotted = path.removeprefix("$").replace("[", ".").replace("]", "")
    return [part.strip("'\"") for part in dotted.split(".") if part]


def _within(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(part)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        items = cast("Sequence[Any]", value)
        number = int(part) if part.lstrip("-").isdecimal() else len(items)
        return items[number] if -len(items) <= number < len(items) else None
    return None if part.startswith("_") else getattr(value, part, None)
