"""Reads attacks: files of Python whose comments say what is to come of them.

The comments at the head of a file, and after each `# %%`, which begins another call:

    # Any sentence: what it tries.
    # outcome: ok error       statuses that count as contained; without it, any but `infrastructure`
    # shows: REGEX            in stdout, stderr or `value=...`; may be repeated, as may `never`
    # never: REGEX
    # session: NAME           shares variables with the other calls of this name; without it, a process of its own
    # wall: 0.5               limits: seconds, seconds, MiB, bytes
    # cpu: 2
    # memory: 64
    # output: 4096
    # peak: 300               MiB of memory that it must not be said to have held more than; at least 1 MiB
    # seconds: 0.3            that the call must be said to have taken, at least
    # wait: 0.2               seconds before it begins
    # runs: 2                 so often may it be run: what it shares variables with may be gone when it begins
    # copies: 3               side by side, so that they reach several slots
    # differs: yes            the copies' stdout must not be the same
    # heavy: yes              takes its time: too much for a long run of mixed calls

Time limits are wide where no time-out is among the outcomes: how fast the machine is makes no
difference. Where one is, an attack that only the limit of its CPU time is to stop has a wide limit
by the clock.

`@WORD@` in the code is replaced by what `Host.words` knows: paths, ports and process ids of the
host; `@NUL@` and `@SURROGATE@` by characters that a file cannot hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hrm_agent.environment import Limits
from hrm_agent.trajectory import ToolStatus

__all__ = ["CORPUS", "Call", "Snippet", "read_folder", "read_snippet"]

CORPUS = Path(__file__).with_name("corpus")
ANY = frozenset(ToolStatus) - {ToolStatus.INFRASTRUCTURE}
DEFAULTS = {"wall": 2.0, "cpu": 4.0, "memory": 256.0, "output": 4096.0}
WIDE = DEFAULTS | {"wall": 200.0, "cpu": 200.0}
"""Limits for snippets that must not end by a time-out."""
KEYS = {
    "outcome",
    "shows",
    "never",
    "session",
    "peak",
    "seconds",
    "wait",
    "runs",
    "copies",
    "differs",
    "heavy",
    *DEFAULTS,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an attack, and what may come of it."""

    code: str
    outcomes: frozenset[ToolStatus] = ANY
    stated: bool = False
    """True if the file itself says the outcomes."""
    shows: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    session: str | None = None
    limits: Limits = field(default_factory=Limits)
    peak: float = 0.0
    seconds: float = 0.0
    wait: float = 0.0
    runs: int = 1
    copies: int = 1
    differs: bool = False
    heavy: bool = False

    def filled(self, words: Mapping[str, str]) -> str:
        """The code with what the host put into it."""
        return re.sub(r"@([A-Z_0-9]+)@", lambda found: words.get(found[1], found[0]), self.code)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One attack."""

    name: str
    """`family/name`."""
    tries: str
    calls: tuple[Call, ...]


def read_folder(folder: Path) -> list[Snippet]:
    """All attacks below a folder, in the order of their names."""
    return [read_snippet(path, folder) for path in sorted(folder.rglob("*.py"))]


def read_snippet(path: Path, folder: Path) -> Snippet:
    text = path.read_text("utf-8", "surrogateescape")
    parts = re.split(r"^# %%.*\n", text, flags=re.MULTILINE)
    heads = [list(_head(part)) for part in parts]
    tries = " ".join(line for line in heads[0] if _directive(line) is None)
    name = path.relative_to(folder).with_suffix("").as_posix()
    return Snippet(name, tries, tuple(map(_call, parts, heads)))


def _head(code: str) -> Iterator[str]:
    for line in code.splitlines():
        if not line.startswith("#"):
            return
        if not line.startswith(("#!", "# -*-")):
            yield line.removeprefix("#").strip()


def _directive(line: str) -> tuple[str, str] | None:
    key, _, value = line.partition(":")
    return (key, value.strip()) if key in KEYS else None


def _call(code: str, head: list[str]) -> Call:
    said = [found for line in head if (found := _directive(line)) is not None]
    last = dict(said)
    outcomes = frozenset(map(ToolStatus, last["outcome"].split())) if "outcome" in last else ANY
    defaults = DEFAULTS if ToolStatus.TIMEOUT in outcomes else WIDE
    wall, cpu, memory, output = (float(last.get(key, default)) for key, default in defaults.items())
    return Call(
        code,
        outcomes,
        stated="outcome" in last,
        shows=tuple(value for key, value in said if key == "shows"),
        never=tuple(value for key, value in said if key == "never"),
        session=last.get("session"),
        limits=Limits(wall, cpu, int(memory * 2**20), int(output)),
        peak=float(last.get("peak", 0)),
        seconds=float(last.get("seconds", 0)),
        wait=float(last.get("wait", 0)),
        runs=int(last.get("runs", 1)),
        copies=int(last.get("copies", 1)),
        differs="differs" in last,
        heavy="heavy" in last,
    )
