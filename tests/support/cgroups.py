"""The cgroup that was delegated to these tests, if one was."""

from __future__ import annotations

import sys
from functools import cache


@cache
def missing_cgroup() -> str:
    """Reason why no cgroup is delegated, and advice (empty if one is). Changes nothing."""
    if sys.platform != "linux":
        return f"There are no cgroups on {sys.platform}."
    from hrm_agent.environment.sandbox.cgroup import delegated

    try:
        delegated(None)
    except OSError as error:
        return (
            f"No cgroup is delegated ({error}): `python -m tests.support.vm python -m pytest -m"
            " cgroup` has one."
        )
    return ""
