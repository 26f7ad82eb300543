"""`hrm-agent doctor`: reports how far this machine can isolate model-written code.

Each layer is tried in a separate process, which shows if the layer is available, and its cost. Then
an environment is started, which shows the layers in force. The two results can differ, since a
container may allow a layer alone but not together with others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation, Layer
from hrm_agent.environment.local.zygote_process import missing_body
from hrm_agent.errors import HrmError

__all__ = ["run"]

_ADVICE = {
    Layer.NAMESPACES: (
        "allow unprivileged user namespaces: sysctl user.max_user_namespaces=10000 and, where there"
        " are such keys, kernel.apparmor_restrict_unprivileged_userns=0,"
        " kernel.unprivileged_userns_clone=1; in a container --security-opt seccomp=unconfined (and"
        " apparmor=unconfined)"
    ),
    Layer.SECCOMP: (
        "a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64; not gVisor, which is a sandbox"
        " itself"
    ),
    Layer.LANDLOCK: (
        "Linux 5.13 or newer, started with landlock among lsm=; in a container, a seccomp profile"
        " that lets its three calls pass"
    ),
    Layer.RLIMITS: "an interpreter that an ordinary user can read: not one below /root",
    Layer.MEMORY_SAMPLING: (
        "a /proc that can be mounted in a namespace: in a container --security-opt"
        " systempaths=unconfined"
    ),
    Layer.CGROUP: (
        "for L3 only: a delegated cgroup (version 2): start the command by `systemd-run --user"
        " --scope -p Delegate=yes`, or name a folder with --cgroup (docs/environment.md)"
    ),
}
_ELSEWHERE = (
    "this is {}, which has none of this: run the code on Linux, and name that machine with"
    " --environment URL."
)


class _LayerRow(NamedTuple):
    layer: Layer
    available: bool
    """True if the layer works in a separate process."""
    in_force: bool
    """True if the layer is in force in the started environment."""
    detail: str
    """Reason why the layer is missing, or further facts about it."""
    slot_us: float | None
    """Cost per slot in microseconds (None if there is nothing to measure)."""
    call_us: float | None
    """Cost per call in microseconds (per sample for memory sampling; None if there is nothing to
    measure).
    """


def run(words: list[str]) -> int:
    """Return 0 if the default level is reached, 1 if not."""
    parser = Parser(
        "doctor", "Check how far this machine isolates model-written code, and at what cost."
    )
    parser.add_argument(
        "what", nargs="?", choices=["environment"], help="the only check there is; may be left out"
    )
    parser.add_argument(
        "--cgroup", type=Path, metavar="FOLDER", help="delegated cgroup to try [this process's own]"
    )
    arguments = parser.read(words)
    found = _found(arguments.cgroup)
    level, missing, problem = _in_force(
        arguments.cgroup, grouped=not found[Layer.CGROUP]["missing"]
    )
    rows = [
        _LayerRow(
            layer,
            available=not of_layer["missing"],
            in_force=layer not in missing,
            detail=of_layer["missing"] or missing.get(layer) or of_layer["detail"],
            slot_us=of_layer["slot_us"],
            call_us=of_layer["call_us"],
        )
        for layer, of_layer in found.items()
    ]
    output = Output(as_json=arguments.json)
    reached = level is not None and level.holds(DEFAULT_ISOLATION)
    layers = [{**row._asdict(), "advice": _advice(row)} for row in rows]
    body = missing_body() if sys.platform == "linux" else _ELSEWHERE
    told = {"level": level, "default": DEFAULT_ISOLATION, "reached": reached, "problem": problem}
    output.result({**told, "missing_body": body, "layers": layers})
    output.table(
        ("layer", "available", "in force", "us per slot", "us per call", ""),
        [_cells(row) for row in rows],
    )
    for row in rows:
        if advice := _advice(row):
            output.say(f"\n{row.layer}: {advice}.")
    if body:
        output.say(
            "\nCalls cost more CPU than they need to: slots do without their compiled body,"
            f" because {body}."
        )
    output.say()
    if level is None:
        output.say(f"No model-written code can be run here: {problem}", style="red")
    elif reached:
        output.say(
            f"Model-written code is isolated by {level}; asked for is {DEFAULT_ISOLATION}.",
            style="green",
        )
    else:
        output.say(
            f"Model-written code is isolated by {level} only, less than {DEFAULT_ISOLATION}:"
            f" commands refuse to run it here unless told --isolation {level}. Or run it elsewhere:"
            " --environment URL.",
            style="red",
        )
    return 0 if level is not None and level.holds(DEFAULT_ISOLATION) else 1


def _in_force(
    cgroup: Path | None, *, grouped: bool
) -> tuple[Isolation | None, dict[str, str], str]:
    """Isolation level of an environment on this machine, reasons for missing layers, and a problem.
    If no environment starts, the level is None and the problem is the reason. `grouped`: True to
    use cgroups, if an environment starts with them.
    """
    if sys.platform != "linux":
        return None, dict.fromkeys(Layer, ""), _ELSEWHERE.format(sys.platform)
    from hrm_agent.environment.local.environment import LocalEnvironment

    problem = ""
    for least in (Isolation.L3, Isolation.L0) if grouped else (Isolation.L0,):
        try:
            environment = LocalEnvironment(
                slots=1, isolation=least, cgroup=cgroup if least is Isolation.L3 else None
            )
        except HrmError as error:
            problem = error.message
            continue
        environment.shutdown()
        return Isolation(environment.isolation), dict(environment.missing), ""
    return None, dict.fromkeys(Layer, ""), problem


def _found(cgroup: Path | None) -> dict[Layer, dict[str, Any]]:
    """Result of the probe (`sandbox/probe.py`), which runs in a separate bare interpreter."""
    if sys.platform != "linux":
        return {layer: _nothing(f"not on {sys.platform}") for layer in Layer}
    from hrm_agent.environment.local.zygote_process import bare_python

    command = bare_python("probe", *([str(cgroup)] if cgroup is not None else []))
    done = subprocess.run(command, env={}, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {layer: _nothing(f"the probe failed: {why}") for layer in Layer}
    return {Layer(name): found for name, found in json.loads(done.stdout).items()}


def _nothing(why: str) -> dict[str, Any]:
    return {"missing": why, "slot_us": None, "call_us": None, "detail": ""}


def _advice(row: _LayerRow) -> str:
    """Advice for a missing layer (empty if the layer is only missing because no environment
    starts).
    """
    if sys.platform != "linux":
        return ""
    return _ADVICE[row.layer] if not row.available or (not row.in_force and row.detail) else ""


def _cells(row: _LayerRow) -> tuple[str, ...]:
    known = _yes(row.available), _yes(row.in_force)
    return (row.layer, *known, _us(row.slot_us), _us(row.call_us), row.detail)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _us(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds:.0f}"
