"""Compiles the sandbox's `_serve.c` when the package is built or installed, in place; goes on
without where it cannot.

Slots work without it, and cost more CPU per call (see `hrm_agent/environment/sandbox/slot.py`). It
needs a C compiler and the interpreter's headers, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "hrm_agent/environment/sandbox"


class CompiledBody(BuildHookInterface[Any]):
    """Only a wheel that holds the compiled body is one for a platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or sys.platform != "linux":
            return
        folder = Path(self.root, FOLDER)
        problem = build(folder / "_serve.c")
        if problem:
            self.app.display_warning(
                f"The sandbox's compiled body is left out, calls cost more CPU: {problem}"
            )
        elif version != "editable":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(
                f"/{FOLDER}/_serve{sysconfig.get_config_var('EXT_SUFFIX')}"
            )


def build(source: Path) -> str:
    """Compile for the interpreter that runs this. Empty, or what stands in the way."""
    target = source.with_name(f"_serve{sysconfig.get_config_var('EXT_SUFFIX')}")
    headers = dict.fromkeys((sysconfig.get_path("include"), sysconfig.get_path("platinclude")))
    if not any(Path(folder, "Python.h").exists() for folder in headers):
        return (
            f"no Python.h in {next(iter(headers))} (install the interpreter's development package)"
        )
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    # as it is ignored by git, no wheel takes it
    made = target.with_name(f".{os.getpid()}{target.name}")
    flags = ["-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", f'-DSOURCE="{digest(source)}"']
    command = [
        *compiler,
        *flags,
        *(f"-I{folder}" for folder in headers),
        str(source),
        "-o",
        str(made),
    ]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    if done.returncode:
        made.unlink(missing_ok=True)
        return next(
            (line for line in done.stderr.splitlines() if "error" in line), f"{compiler[0]} failed"
        )
    made.replace(target)
    return ""


def digest(source: Path) -> str:
    """By which `hrm_agent.environment.local.zygote_process` knows a body that was built from
    another version.
    """
    return hashlib.sha256(source.read_bytes()).hexdigest()[:16]
