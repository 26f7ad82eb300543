"""Paths whose differences are reported but do not count: `--ignore`.

A path is a channel of the state and a path into its value: `notes`,
`messages[*].additional_kwargs.x`, `report.made_at`, `rows[0]`. `[*]` is each item of a list, `.*`
each field or key. A path that begins with `request.` leads into a request:
`request.messages[*].content`, `request.tools`; in a tool call `request.arguments.NAME`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

from pydantic import BaseModel

from hrm_agent.errors import ConfigError

__all__ = ["Ignored", "IgnoredPath"]

_REQUEST = "request"
_PART = re.compile(r"\.?([^.\[\]*]+)|\[(\d+)\]|(\[\*\]|\.\*)")
_MOST_SHOWN = 80
Part = str | int | None
"""Name, index, or None for each item."""


@dataclass(frozen=True, slots=True)
class IgnoredPath:
    """Path whose differences are ignored."""

    text: str
    """Path as given."""
    parts: tuple[Part, ...]
    """Names and indices; None for each item."""
    in_request: bool
    """True if it leads into a request, not into the state."""

    @classmethod
    def parse(cls, text: str) -> IgnoredPath:
        """Parse a path. Raises `ConfigError` if it is invalid."""
        parts = list[Part]()
        at = 0
        for found in _PART.finditer(text):
            if (
                found.start() != at
                or (at == 0 and not found[1])
                or (at > 0 and found[1] and found[0][0] != ".")
            ):
                break
            parts.append(found[1] or (int(found[2]) if found[2] else None))
            at = found.end()
        in_request = bool(parts) and parts[0] == _REQUEST and len(parts) > 1
        if at != len(text) or not parts:
            raise ConfigError(
                f"--ignore {text!r} is no valid path: it cannot be read from character {at + 1} on.",
                "A path is like messages[*].additional_kwargs.x, notes[0] or"
                " request.messages[0].content.",
            )
        if in_request and parts[1] == "tools" and len(parts) > 2:
            raise ConfigError(
                f"--ignore {text!r} leads into the tools that a model was offered: they are on"
                " record as a hash.",
                "Ignore them as a whole: request.tools.",
            )
        return cls(text, tuple(parts[1:] if in_request else parts), in_request)


class Ignored:
    """Ignored paths of one replay, and the values found at them."""

    def __init__(self, paths: Iterable[IgnoredPath] = ()) -> None:
        self._paths = tuple(paths)
        self._found: dict[str, int] = {path.text: 0 for path in self._paths}
        """Path -> number of values found at it."""
        self._differences: dict[str, dict[str, None]] = {path.text: {} for path in self._paths}

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Paths that matched nothing."""
        return tuple(text for text, count in self._found.items() if not count)

    @property
    def differences(self) -> tuple[str, ...]:
        """Ignored differences in words."""
        return tuple(
            f"{path}: {what}" for path, found in self._differences.items() for what in found
        )

    @property
    def in_requests(self) -> bool:
        """True if any path leads into a request."""
        return any(path.in_request for path in self._paths)

    @property
    def tools(self) -> bool:
        """True if differences between the offered tools are ignored."""
        return any(path.in_request and path.parts == ("tools",) for path in self._paths)

    def leads_into(self, channel: str) -> bool:
        """True if any path leads into a channel of the state."""
        return any(not path.in_request and path.parts[0] in (None, channel) for path in self._paths)

    def blanked(
        self, recorded: Any, now: Any, *, request: bool = False, note: bool = True
    ) -> tuple[Any, Any]:
        """Two mappings (states by channel, or requests) without ignored values. `note`: remember
        the ignored differences.
        """
        for path in self._paths:
            if path.in_request is request:
                old = list[Any]()
                new = list[Any]()
                recorded = _replaced(recorded, path.parts, old)
                now = _replaced(now, path.parts, new)
                if note:
                    self._note(path.text, old, new)
        return recorded, now

    def note_tools(self) -> None:
        """Note that the tools of a request differ, and are ignored."""
        for path in self._paths:
            if path.in_request and path.parts == ("tools",):
                self._note(path.text, ["other tools"], ["these"])

    def _note(self, text: str, old: Sequence[Any], new: Sequence[Any]) -> None:
        self._found[text] += max(len(old), len(new))
        for then, now in zip(old, new, strict=False):
            if then != now:
                self._differences[text][f"{_shown(then)} -> {_shown(now)}"] = None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _replaced(value: Any, parts: Sequence[Part], found: list[Any]) -> Any:
    """Copy `value` with None at the path. The values that were there are appended to `found`."""
    if not parts:
        found.append(value)
        return None
    part = parts[0]
    rest = parts[1:]

    def go(item: Any) -> Any:
        return _replaced(item, rest, found)

    if isinstance(value, Mapping):
        held = cast("Mapping[Any, Any]", value)
        return {name: go(item) if part in (None, name) else item for name, item in held.items()}
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        swapped = [go(item) if part in (None, i) else item for i, item in enumerate(items)]
        return swapped if isinstance(value, list) else tuple(swapped)
    if isinstance(value, BaseModel):
        names = [name for name in type(value).model_fields if part in (None, name)]
        return value.model_copy(update={name: go(getattr(value, name)) for name in names})
    if is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for each in fields(value):
            if part in (None, each.name):
                object.__setattr__(copied, each.name, go(getattr(value, each.name)))
        return copied
    return value
