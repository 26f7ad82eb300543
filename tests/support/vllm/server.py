"""A vLLM server for the tests: on a free port of the loopback, with the small policy in float32,
without a GPU.

It ends with the tests, whatever ends them: the kernel signals it when its parent dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx

from tests.support.postgres import free_port

__all__ = ["MISSING", "OPTIONS", "VllmServer", "find_python"]

PROJECT = Path(__file__).parents[3]
MISSING = (
    "The vLLM server of the tests is not installed: run `make vllm`, or tests/support/vllm/install."
)
_START_SECONDS = 600.0
OPTIONS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"),
    *("--max-num-seqs", "32", "--block-size", "32"),
    # where a schema allows white space, a policy this small would sample it without end
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)


def find_python() -> Path | None:
    """The server's interpreter (None if it is not installed, or installed from other requirements
    than the present ones).
    """
    venv = Path(os.environ.get("VLLM_VENV", PROJECT / ".venv-vllm"))
    wanted, stamp = Path(__file__).with_name("requirements.txt"), venv / ".installed"
    current = stamp.is_file() and stamp.read_bytes() == wanted.read_bytes()
    return venv / "bin" / "python" if current else None


class VllmServer:
    """Server that is ready when the constructor returns. The constructor raises `RuntimeError` with
    the end of the log.
    """

    def __init__(
        self, python: Path, model: str, folder: Path, *options: str, path: str = ""
    ) -> None:
        """Start the server. `path`: its PYTHONPATH."""
        self.port = free_port()
        self._log = folder / "vllm.log"
        command = [
            "setpriv",
            "--pdeathsig",
            "TERM",
            "--",
            python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*map(str, command), *OPTIONS, *options],
                env=_environment(python)
                | ({"PYTHONPATH": path, "VLLM_SERVER_DEV_MODE": "1"} if path else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - started
        print(f"the vLLM server started in {self.start_seconds:.0f} s", file=sys.stderr)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def stop(self) -> None:
        """Stop the server and its workers, which are processes of the same session."""
        for sign, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _wait(self) -> None:
        until = time.monotonic() + _START_SECONDS
        with httpx.Client(trust_env=False, verify=False) as client:
            while time.monotonic() < until and self._process.poll() is None:
                with suppress(httpx.HTTPError):
                    if client.get(f"http://127.0.0.1:{self.port}/health").status_code == 200:
                        return
                time.sleep(0.25)
        end = self._log.read_text(errors="replace").splitlines()[-40:]
        raise RuntimeError("\n".join(["The vLLM server did not start:", *end]))


def _environment(python: Path) -> dict[str, str]:
    """Environment variables of the server. Python may write bytecode, since the server is three
    processes, each of which reads thousands of modules.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VLLM_", "PYTEST_"))
    }
    return kept | {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(python.parents[1] / "cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
