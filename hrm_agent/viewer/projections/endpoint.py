"""Named endpoints and their query values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.errors import ConfigError, nearest

__all__ = ["PLACE", "Endpoint", "Parameter"]

PLACE = "place"
"""Query value that names the place. The server reads it, and no endpoint lists it."""
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """Query value."""

    type: type[str] | type[int] = str
    """Type of the value."""
    default: str | int | None = None
    """Default value."""
    required: bool = False
    """True if the value must be given."""
    least: int = 0
    """Lower bound of a number."""
    most: int = 2**53 - 1
    """Upper bound of a number."""

    def read(self, name: str, text: str) -> str | int:
        """Parse the text of a value. Raises `ConfigError` if it is invalid."""
        if self.type is str:
            if len(text) > _LONGEST:
                raise ConfigError(f"{name} has {len(text)} characters.", f"At most {_LONGEST}.")
            return text
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 16):
            raise ConfigError(f"{name}={text[:80]!r} is not a whole number.", f"Write {name}=N.")
        number = int(text)
        if not self.least <= number <= self.most:
            raise ConfigError(
                f"{name}={number} is out of range.", f"From {self.least} to {self.most}."
            )
        return number


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Projection with its query values."""

    function: Callable[..., dict[str, Any]]
    """Function that is called with a place, or all of them, and the query values by name."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    """Query values without the place."""
    everywhere: bool = False
    """True if the function takes all places."""

    def read(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of the function. Raises `ConfigError` for an unknown, malformed or missing
        value.
        """
        for name in query:
            if name not in self.parameters and (name != PLACE or self.everywhere):
                known = ", ".join(self.parameters) or "none"
                raise ConfigError(
                    f"There is no query value {name[:80]!r}. {nearest(name[:80], self.parameters)}".strip(),
                    f"Known: {known}.",
                )
        found: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if query.get(name, "") != "":
                found[_argument(name)] = parameter.read(name, query[name])
            elif parameter.required:
                raise ConfigError(f"The query value {name!r} is missing.", f"Add {name}=VALUE.")
            else:
                found[_argument(name)] = parameter.default
        return found


def _argument(name: str) -> str:
    """Argument name of a query value: `from` is a Python keyword."""
    return f"{name}_" if name == "from" else name
