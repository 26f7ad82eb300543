"""Text that names an environment: `openenv:PLACE?option=value` or `verifiers:NAME?option=value`.

PLACE is the URL of a running server, or a package or folder whose server is started.

| option | meaning |
|---|---|
| `python` | interpreter that has the environment installed (default: the one that runs this) |
| `app` | server of an OpenEnv package, as `module:attribute` (default: `PACKAGE.server.app:app`) |
| `reply` | field of OpenEnv's actions that takes the text of an answer (default: actions are tools) |
| `steps` | maximum number of acts, after which the episode is over (default: no limit) |
| `low`, `high` | returns that become the rewards 0 and 1 (default: 0 and 1) |
| `seconds` | time limit of each request (default: 60) |

Other options of OpenEnv are given to the environment's `reset`. Other options of verifiers are
fields of the taskset's configuration.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from hrm_agent.errors import TaskError

__all__ = ["EnvironmentSource", "parse_source"]

Kind = Literal["openenv", "verifiers"]
_TEXTS = ("python", "app", "reply")
_NUMBERS = ("low", "high", "seconds")


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """Environment and how it is played."""

    kind: Kind
    """Protocol of the environment."""
    place: str
    """URL, package, folder, or name of a taskset."""
    python: str = ""
    """Interpreter that runs the environment (empty: the one of this process)."""
    app: str = ""
    """Server of an OpenEnv package as `module:attribute` (empty: the usual place)."""
    reply: str = ""
    """Field of actions that takes the text of an answer (empty: actions are tools)."""
    steps: int | None = None
    """Maximum number of acts (None: no limit)."""
    low: float = 0.0
    """Return that becomes the reward 0."""
    high: float = 1.0
    """Return that becomes the reward 1."""
    seconds: float = 60.0
    """Time limit in seconds of each request."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the environment itself."""

    @property
    def url(self) -> str:
        """URL of a running server (empty if this process starts the server)."""
        return self.place if self.place.lower().startswith(("http://", "https://")) else ""

    @property
    def takes_replies(self) -> bool:
        """True if each answer of the policy is an act, with or without tool calls."""
        return self.kind == "verifiers" or bool(self.reply)

    def reward(self, total: float) -> float:
        """Reward from 0 to 1 for the return of an episode. Raises `ValueError` outside of the
        declared range.
        """
        reward = (total - self.low) / (self.high - self.low)
        if not -1e-9 <= reward <= 1 + 1e-9:
            raise ValueError(
                f"the environment returned {total:g}, outside of {self.low:g} to {self.high:g};"
                " name its range: low=NUMBER&high=NUMBER"
            )
        return min(max(reward, 0.0), 1.0)


def parse_source(text: str) -> EnvironmentSource:
    """Read the text that names an environment. Raises `TaskError` for an invalid one."""
    kind, _, rest = text.partition(":")
    place, _, query = rest.partition("?")
    if kind not in ("openenv", "verifiers") or not place:
        raise TaskError(
            f"{text!r} names no environment.",
            "Write openenv:URL, openenv:PACKAGE, openenv:FOLDER or verifiers:NAME.",
        )
    given = dict(parse_qsl(query, keep_blank_values=True))
    fields: dict[str, Any] = {name: given.pop(name) for name in _TEXTS if name in given}
    fields |= {name: _number(text, name, given.pop(name)) for name in _NUMBERS if name in given}
    if "steps" in given:
        steps = _number(text, "steps", given.pop("steps"))
        if steps < 1 or steps != int(steps):
            raise TaskError(f"{text}: steps is {steps:g}.", "Give a whole number from 1.")
        fields["steps"] = int(steps)
    if kind == "openenv" and "seed" in given:
        raise TaskError(
            f"{text}: each task has a seed of its own, so none can be given.",
            "--seed changes the seeds of all tasks.",
        )
    source = EnvironmentSource(
        kind, place, arguments={name: _literal(value) for name, value in given.items()}, **fields
    )
    _refuse(text, source)
    return source


def _refuse(text: str, source: EnvironmentSource) -> None:
    if source.high <= source.low:
        raise TaskError(
            f"{text}: high is {source.high:g}, low is {source.low:g}.", "high must be above low."
        )
    if source.seconds <= 0:
        raise TaskError(f"{text}: seconds is {source.seconds:g}.", "Give a time above 0.")
    if source.kind == "verifiers" and (source.app or source.reply or source.url):
        raise TaskError(
            f"{text}: app, reply and URLs are of OpenEnv.", "Write verifiers:NAME?python=PATH."
        )
    if not source.url:
        if "://" in source.place:
            raise TaskError(f"{text}: the URL is not HTTP.", "Write http:// or https://.")
        return
    try:
        parts = urlsplit(source.url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts = None
        valid = False
    if not valid or parts is None:
        raise TaskError(
            f"{text}: the URL has no host, or no valid port.", "Write http://HOST:PORT."
        )
    if parts.username or parts.password or parts.fragment:
        raise TaskError(
            f"The URL of an environment on {parts.hostname} holds a password or a fragment, and"
            " the URL would be recorded.",
            "Write http://HOST:PORT.",
        )
    if source.python or source.app:
        raise TaskError(
            f"{text}: python and app are for a server that is started, and this one runs already.",
            "Leave them out.",
        )


def _number(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(f"{text}: {name} is {value!r}, not a number.", f"Write {name}=1.")
    return number


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
