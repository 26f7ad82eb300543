"""One environment, lent to commands that would open one of their own. This saves the seconds in
which processes start.
"""

from __future__ import annotations

from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment import open as opening
from hrm_agent.environment.isolation import DEFAULT_ISOLATION
from hrm_agent.environment.local import environment as local

__all__ = ["lend"]


class Lent:
    """Wrapper of an environment that cannot be closed."""

    def __init__(self, environment: LocalEnvironment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    async def close(self) -> None:
        """Do nothing: the environment is only lent."""


def lend(environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands use `environment` where they would open a local one at the default isolation
    level.
    """
    kind, open_ = local.LocalEnvironment, opening._open

    def opened(where: str | None, isolation: Any, token: str | None, spare_seconds: Any) -> Any:
        usual = where is None and isolation == DEFAULT_ISOLATION and local.LocalEnvironment is kind
        return Lent(environment) if usual else open_(where, isolation, token, spare_seconds)

    monkeypatch.setattr(opening, "_open", opened)
