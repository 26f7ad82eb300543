"""Evaluates given actions by OpenEnv's own client, in its interpreter.

    python own_openenv.py URL < '[{"reset": {...}, "actions": [...]}]'

Writes the sum of the rewards of each episode as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any


async def main() -> None:
    """Evaluate the episodes of the standard input."""
    client_class: Any = import_module("openenv.core").GenericEnvClient
    totals: list[float] = []
    for episode in json.load(sys.stdin):
        async with client_class(base_url=sys.argv[1]) as client:
            result = await client.reset(**episode["reset"])
            total = result.reward or 0.0
            for action in episode["actions"]:
                result = await client.step(action)
                total += result.reward or 0.0
            totals.append(total)
    print(json.dumps(totals))


if __name__ == "__main__":
    asyncio.run(main())
