"""Driver of smolagents' in-process interpreter, call after call, run by the interpreter of a
virtual environment that has it.

It reads workloads as JSON from stdin and writes the result of each. Each call has a new executor,
as each call of our environment has a new process. Imported modules stay loaded, since the process
stays. Standard library and smolagents only.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
from typing import Any

from smolagents.local_python_executor import InterpreterError, LocalPythonExecutor


def ran(workload: dict[str, Any]) -> tuple[str, str]:
    """Outcome (`ok`, `error` or `timeout`) and output of a workload."""
    executor = LocalPythonExecutor(["*"], timeout_seconds=int(workload["seconds"]))
    executor.send_tools({})
    try:
        return "ok", executor(workload["code"]).logs
    except InterpreterError as error:
        return "error", str(executor.state.get("_print_outputs", "")) or str(error)
    except Exception as error:
        return ("timeout" if "exceeded the maximum execution time" in str(error) else "error"), ""


def measured(workload: dict[str, Any], calls: int, seconds: float) -> dict[str, Any]:
    latencies, answers = [], []
    started, used = time.perf_counter(), time.process_time()
    while not latencies or (len(latencies) < calls and time.perf_counter() - started < seconds):
        asked = time.perf_counter()
        answers.append(ran(workload))
        latencies.append(time.perf_counter() - asked)
    spent = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - used}
    return {**spent, "latencies": latencies, "answers": answers}


def main() -> None:
    given = json.load(sys.stdin)
    for workload in given["workloads"]:
        # a warm-up
        ran(
            {**workload, "seconds": 60}
            if workload["status"] != "timeout"
            else {**workload, "code": "0"}
        )
        late = workload["status"] == "timeout"
        print(
            json.dumps(measured(workload, 1 if late else given["calls"], given["seconds"])),
            flush=True,
        )


if __name__ == "__main__":
    main()
