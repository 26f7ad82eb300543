"""`doctor`: kernel features are found by trying them, here and on machines that lack some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.cli.services import doctor
from hrm_agent.environment.isolation import Isolation, Layer, level_of
from hrm_agent.environment.sandbox import probe
from hrm_agent.environment.sandbox.cgroup import delegated
from tests.cli.conftest import Command
from tests.support.cgroups import missing_cgroup

LEVEL = "L2" if missing_cgroup() else "L3"

WITHOUT_NAMESPACES = """
import ctypes, os, sys
uid = os.getuid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for path, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1")):
    with open(f"/proc/self/{path}", "w") as file: file.write(text)
with open("/proc/sys/user/max_user_namespaces", "w") as file: file.write("0")
os.execv(sys.executable, [sys.executable, "-m", "hrm_agent.cli.main", *sys.argv[1:]])
"""
"""Runs a command as an ordinary user who may make no user namespaces."""


def layers(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["layer"]: row for row in record["layers"]}


@pytest.mark.parametrize("words", [("doctor",), ("doctor", "environment")], ids=" ".join)
def test_every_layer_is_told(words: tuple[str, ...], hrm: Command) -> None:
    done = hrm(*words, "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.json["level"], done.json["default"], done.json["reached"]) == (LEVEL, "L2", True)
    found = layers(done.json)
    assert list(found) == [str(layer) for layer in Layer]
    needed = {"namespaces", "seccomp", "landlock", "rlimits", "memory sampling"}
    for name in needed:
        assert (found[name]["available"], found[name]["in_force"], found[name]["advice"]) == (
            True,
            True,
            "",
        )
    assert found["landlock"]["detail"].startswith("ABI ")
    costs = [found[name]["slot_us"] for name in ("namespaces", "seccomp", "landlock")]
    assert all(cost >= 0 for cost in costs) and found["memory sampling"]["call_us"] > 0
    assert found["namespaces"]["call_us"] is not None


def test_a_cost_is_what_a_step_adds_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> None:
        """Do nothing, since the step is not run here."""

    seconds = {
        True: iter([900.0, 350.0, *[500.0] * 100]),
        False: iter([200.0, 700.0, 100.0, *[400.0] * 100]),
    }
    monkeypatch.setattr(probe, "_child", lambda taken, *_: ("", next(seconds[taken is step])))
    assert probe._measure(step) == ("", 250.0)


def test_for_people(hrm: Command) -> None:
    done = hrm("doctor", "environment")
    assert done.code == 0
    assert "us per slot" in done.out
    assert ("cgroup: for L3 only" in done.out) == bool(missing_cgroup())
    assert f"isolated by {LEVEL}; asked for is L2." in done.out


@pytest.mark.cgroup
def test_a_delegated_cgroup_is_tried(hrm: Command) -> None:
    for words in ((), ("--cgroup", delegated(None))):
        done = hrm("doctor", *words, "--json")
        assert (done.code, done.json["level"]) == (0, "L3")
        found = layers(done.json)["cgroup"]
        assert (found["available"], found["in_force"], found["advice"]) == (True, True, "")
        assert found["slot_us"] > 0 and found["call_us"] >= 0
        assert found["detail"] == delegated(None)
    assert list(Path(delegated(None)).glob("hrm-*/")) == []


def test_a_folder_that_is_no_cgroup(hrm: Command, tmp_path: Path) -> None:
    done = hrm("doctor", "--cgroup", str(tmp_path), "--json")
    assert (done.code, done.json["level"]) == (0, "L2")
    found = layers(done.json)["cgroup"]
    assert (found["available"], found["in_force"]) == (False, False)
    assert (
        "cgroup" in found["detail"]
        and "systemd-run --user --scope -p Delegate=yes" in found["advice"]
    )


def test_slots_without_their_compiled_body_are_told(
    hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_AGENT_PURE_SANDBOX", "1")
    done = hrm("doctor", "environment")
    assert done.code == 0
    assert "because HRM_AGENT_PURE_SANDBOX is set." in " ".join(done.out.split())


def test_what_is_missing_is_told_with_its_reason_and_what_to_do() -> None:
    command = [sys.executable, "-c", WITHOUT_NAMESPACES, "doctor", "environment"]
    done = subprocess.run(
        [*command, "--json"], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (1, "")
    record = json.loads(done.stdout)
    assert (record["level"], record["reached"]) == ("L1", False)
    found = layers(record)
    assert (found["namespaces"]["available"], found["namespaces"]["in_force"]) == (False, False)
    assert "unshare: No space left on device" in found["namespaces"]["detail"]
    assert "user.max_user_namespaces" in found["namespaces"]["advice"]
    assert found["namespaces"]["slot_us"] is None
    assert (found["landlock"]["in_force"], found["seccomp"]["in_force"]) == (True, True)
    said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert said.returncode == 1
    assert "isolated by L1 only, less than L2" in said.stdout
    assert "--isolation L1" in said.stdout


def test_elsewhere_than_on_linux(hrm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    done = hrm("doctor", "--json")
    assert (done.code, done.json["level"]) == (1, None)
    assert not any(row["available"] or row["in_force"] for row in done.json["layers"])
    assert (
        "No model-written code can be run here: this is darwin, which has none of this"
        in hrm("doctor").out
    )


def test_what_needs_no_sandbox_here_can_be_imported_anywhere() -> None:
    elsewhere = (
        "import os\n"
        "here = os.uname()\n"
        "os.uname = lambda: os.uname_result((*here[:4], 'arm64'))\n"
        "from hrm_agent.environment.remote.client import RemoteEnvironment\n"
    )
    subprocess.run([sys.executable, "-c", elsewhere], check=True)


def test_an_unknown_part(hrm: Command) -> None:
    done = hrm("doctor", "engine")
    assert done.code == 2
    assert "environment" in done.err


@pytest.mark.parametrize(
    ("missing", "level"),
    [
        ((), "L3"),
        (("cgroup",), "L2"),
        (("memory sampling",), "L3"),
        (("cgroup", "memory sampling"), "L1"),
        (("namespaces",), "L1"),
        (("cgroup", "namespaces", "memory sampling"), "L1"),
        (("cgroup", "seccomp"), "L0"),
        (("cgroup", "landlock"), "L0"),
        (("rlimits",), "L0"),
    ],
)
def test_levels(missing: tuple[str, ...], level: str) -> None:
    assert level_of(dict.fromkeys(missing, "why")) is Isolation(level)
