"""Reward functions with faults that a scorer has to survive. Each does its fault if the final text
says so.
"""

from __future__ import annotations

import asyncio
import math
import os
import time

from hrm_agent.rewards import Reward, Rubric


def right(text: str, reference: str | None) -> bool:
    return text == reference


def sleeps(text: str) -> float:
    if text == "sleep":
        time.sleep(3600)
    return 0.5


async def blocks(text: str) -> float:
    if text == "block":
        time.sleep(3600)
    if text == "wait":
        await asyncio.sleep(3600)
    return 0.5


def misbehaves(text: str) -> float | str | None:
    match text:
        case "raise":
            raise ValueError("of no use")
        case "nan":
            return math.nan
        case "exit":
            os._exit(3)
        case "quit":
            raise SystemExit(3)
        case "stop":
            raise StopIteration
        case "fork":
            os.fork()
        case "words":
            return "good"
        case "abstain":
            return None
        case _:
            pass
    return 0.25


rubric = Rubric(
    [
        Reward(right),
        Reward(sleeps, timeout_seconds=0.5),
        Reward(blocks, timeout_seconds=0.5),
        Reward(misbehaves, timeout_seconds=5),
    ]
)
