"""Choice of the place where model-written code runs, by one configuration value: this machine, a
server or a Ray cluster.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, cast

from pydantic import AfterValidator, BeforeValidator

from hrm_agent.environment.base import Environment
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation, parse_isolation
from hrm_agent.errors import ConfigError, HrmError

__all__ = [
    "SPARE_SECONDS",
    "LeastIsolation",
    "Where",
    "open_environment",
    "opened_environment",
    "parse_where",
]

SPARE_SECONDS = 5.0
"""Seconds for which idle processes are kept. The update of a training step takes less, so the
processes last from one step to the next.
"""
_SERVED = ("http://", "https://", "unix:")
_FORMS = (
    "Name http://HOST:PORT, https://HOST:PORT or unix:PATH for a server, or ray or ray:ADDRESS for"
    " a Ray cluster. Name none for this machine."
)


def parse_where(text: str) -> str:
    """Return `text` unchanged if it is a valid address of an environment. Raises ConfigError."""
    if text == "ray" or (text.startswith("ray:") and text != "ray:"):
        return text
    if text.startswith(_SERVED) and text not in _SERVED:
        from hrm_agent.environment.remote.address import parse_address

        parse_address(text)
        return text
    raise ConfigError(f"{text!r} is not an environment.", _FORMS)


LeastIsolation = Annotated[Isolation, BeforeValidator(lambda value: parse_isolation(str(value)))]
"""Configuration value: the least isolation accepted."""
Where = Annotated[str, AfterValidator(parse_where)]
"""Configuration value: an address that `open_environment` accepts."""


def open_environment(
    where: str | None = None,
    *,
    isolation: Isolation = DEFAULT_ISOLATION,
    token: str | None = None,
    spare_seconds: float | None = None,
) -> Environment:
    """Open the environment at `where` (None for this machine). The caller closes it.

    `isolation`: the least isolation accepted. `token`: bearer token for a server (None: the
    variable HRM_AGENT_ENVIRONMENT_TOKEN). `spare_seconds`: see `LocalEnvironment`. Raises
    ConfigError for an invalid address, and HrmError for an environment that is unreachable or
    isolates less.
    """
    environment = _open(where, isolation, token, spare_seconds)
    if not Isolation(environment.isolation).holds(isolation):
        raise HrmError(
            f"{where} isolates model-written code at level {environment.isolation}, which is less"
            f" than {isolation}.",
            f"Name another environment, or accept less: --isolation {environment.isolation}.",
        )
    return environment


def _open(
    where: str | None, isolation: Isolation, token: str | None, spare_seconds: float | None
) -> Environment:
    if where is None:
        from hrm_agent.environment.local.environment import LocalEnvironment

        return LocalEnvironment(isolation=isolation, spare_seconds=spare_seconds)
    if parse_where(where).startswith("ray"):
        from hrm_agent.environment.on_ray.environment import RayEnvironment

        address = where.removeprefix("ray").removeprefix(":") or None
        return RayEnvironment(address, isolation=isolation)
    from hrm_agent.environment.remote.client import RemoteEnvironment

    return RemoteEnvironment(where, token=token, least=isolation)


@asynccontextmanager
async def opened_environment(
    where: str | None = None, *, isolation: Isolation = DEFAULT_ISOLATION, token: str | None = None
) -> AsyncGenerator[Environment]:
    """Open an environment for many runs, and close it at the end. Warns on stderr if its level is
    lower than the default.

    An environment on this machine keeps idle processes from one training step to the next
    (`SPARE_SECONDS`).
    """
    environment = open_environment(
        where, isolation=isolation, token=token, spare_seconds=SPARE_SECONDS
    )
    try:
        level = environment.isolation
        if not Isolation(level).holds(DEFAULT_ISOLATION):
            missing = cast("Mapping[str, str]", getattr(environment, "missing", {}))
            why = "".join(f" No {layer}: {reason}." for layer, reason in missing.items())
            sys.stderr.write(
                f"hrm-agent: Model-written code runs on {where or 'this machine'} under isolation"
                f" {level}, less than {DEFAULT_ISOLATION}.{why} `hrm-agent doctor environment`"
                " there says what to do.\n"
            )
        yield environment
    finally:
        await environment.close()
