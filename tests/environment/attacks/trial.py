"""Runs one attack against an environment, and judges it: its outcomes, the host afterwards, the
next healthy calls.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from hrm_agent.environment import Environment, ExecutionResult, Limits
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import PROJECT, Host
from tests.environment.attacks.snippets import Call, Snippet
from tests.support.environment.contract import gauge

__all__ = ["LATE_SECONDS", "Trial", "health", "judge", "try_attack", "warm_up"]

LATE_SECONDS = 60.0
"""Seconds by which a call may exceed its wall-clock limit, however slow and loaded the machine is.
Only a call that nothing ends is later.
"""
SOON_SECONDS = 2.0
"""Wall-clock limit in seconds below which a slow machine may not have begun the call in time. Such
a call may run once more.
"""
NOTE_BYTES = 400
"""Size of the note between the head and the tail of output that was cut, or below it."""
HEALTHY = "import os, time\ntime.sleep({})\nprint(40 + 2)\nsorted(os.listdir('/tmp'))"
_numbers = count(1)


@dataclass(slots=True)
class Trial:
    """Outcome of one attack."""

    snippet: Snippet
    results: list[ExecutionResult] = field(default_factory=list[ExecutionResult])
    complaints: list[str] = field(default_factory=list[str])
    """Faults that were found (empty if the attack was contained)."""


async def try_attack(
    snippet: Snippet, environment: Environment, host: Host, slots: int, late: float = LATE_SECONDS
) -> Trial:
    """Run all calls of an attack, then look at the host and at every slot."""
    trial, number, words = Trial(snippet), next(_numbers), host.words()
    deaths = await gauge(environment, "slot_deaths")
    for i, call in enumerate(snippet.calls):
        await asyncio.sleep(call.wait)
        session = f"{call.session} of {number}" if call.session is not None else None
        one = environment.execute
        copies = [
            one(call.filled(words), session=session, limits=call.limits) for _ in range(call.copies)
        ]
        results = await asyncio.gather(*copies)
        trial.results += results
        found = [
            complaint for result in results for complaint in judge(call, result, host, words, late)
        ]
        if call.differs and len({result.stdout for result in results}) < len(results):
            found.append("the copies are the same")
        trial.complaints += [f"call {i + 1}: {complaint}" for complaint in dict.fromkeys(found)]
    for name in {call.session for call in snippet.calls if call.session is not None}:
        await environment.end_session(f"{name} of {number}")
    trial.complaints += await health(environment, slots)
    if await gauge(environment, "slot_deaths") > deaths:
        trial.complaints.append("a slot died")
    trial.complaints += await asyncio.to_thread(host.complaints)
    return trial


def judge(
    call: Call,
    result: ExecutionResult,
    host: Host,
    words: Mapping[str, str],
    late: float = LATE_SECONDS,
) -> list[str]:
    """Faults of an outcome: deviations from what the attack may end with, and from what holds for
    every outcome.
    """
    value = result.value or ""
    text = f"{result.stdout}\n{result.stderr}\nvalue={value}"
    found = [
        f"{line.strip()[:200]}"
        for line in f"{result.stdout}\n{value}".splitlines()
        if "BREACH" in line
    ][:5]
    if result.status not in call.outcomes:
        found.append(
            f"{result.status}, not {'/'.join(sorted(call.outcomes))}: {result.stderr[-300:]}"
        )
    if host.secret in f"{text}{result.value_json}":
        found.append("a secret of the host was read")
    if str(PROJECT) in result.stderr:
        found.append("a path of the host in a traceback")
    found += [
        f"does not show {regex}: {text[-300:]!r}"
        for regex in call.shows
        if not re.search(regex, text)
    ]
    found += [f"shows {regex}: {text[-300:]!r}" for regex in call.never if re.search(regex, text)]
    if call.peak and not 1 <= result.peak_memory_bytes / 2**20 <= call.peak:
        found.append(f"is said to have held {result.peak_memory_bytes} bytes")
    if result.duration_seconds < call.seconds:
        found.append(f"is said to have taken {result.duration_seconds:.2f} s")
    if result.attempt > (call.runs if call.limits.wall_seconds >= SOON_SECONDS else 2):
        found.append(f"was run {result.attempt} times")
    return found + _wrong_always(call.limits, result, late)


def _wrong_always(limits: Limits, result: ExecutionResult, late: float) -> list[str]:
    found = list[str]()
    if (
        result.status is not ToolStatus.INFRASTRUCTURE
        and result.duration_seconds > limits.wall_seconds + late
    ):
        found.append(f"took {result.duration_seconds:.2f} s of {limits.wall_seconds}")
    for name in ("stdout", "stderr", "value", "value_json"):
        text: str = getattr(result, name) or ""
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            found.append(f"{name} is no text")
            continue
        # one byte that is no text becomes a character of three
        if size > 3 * limits.output_bytes + NOTE_BYTES:
            found.append(f"{name} has {size} bytes")
    if result.value_json is not None:
        try:
            json.loads(result.value_json)
        except ValueError:
            found.append(f"value_json is no JSON: {result.value_json[:100]}")
    return found


async def health(environment: Environment, slots: int, seconds: float = 0.02) -> list[str]:
    """Faults of healthy calls: one on every slot at once, and one in a session."""
    code, limits, session = HEALTHY.format(seconds), Limits(200, 200), f"healthy {next(_numbers)}"
    results = await asyncio.gather(
        *(environment.execute(code, limits=limits) for _ in range(slots))
    )
    results.append(await environment.execute(code, session=session, limits=limits))
    await environment.end_session(session)
    return [
        f"the next call: {result.status} {result.stdout!r} {result.stderr[-200:]!r} {result.value}"
        for result in results
        if (result.status, result.stdout, result.value) != (ToolStatus.OK, "42\n", "[]")
    ]


async def warm_up(environment: Environment, host: Host, slots: int) -> None:
    """Start everything that is started on demand, then take the host as it is."""
    imports = "try: import numpy, sympy\nexcept ImportError: pass\n" + HEALTHY.format(0.2)
    for code in (HEALTHY.format(0.2), imports):
        await asyncio.gather(
            *(environment.execute(code, limits=Limits(200, 200)) for _ in range(slots))
        )
        await environment.execute(code, session="warm", limits=Limits(200, 200))
        await environment.end_session("warm")
    large = HEALTHY.format(0) + f"\n{'#' * 300_000}"  # Ray opens connections for these
    await environment.execute(large, limits=Limits(200, 200))
    await health(environment, slots)
    await asyncio.sleep(0.5)
    host.settle()
