"""Kills at random under a training on two vLLM servers, and what is on record afterwards.

    python -m tests.models.vllm.kills [--kills 50] [--steps 6] [--seed 0] [--minutes 60] [--ray] [--json FILE]

A trainer with two workers samples on two servers; the workers are processes of it, or actors on two
nodes of a Ray cluster. At random moments, every other time just after a publish has begun, the
trainer, a worker, a server or a node is killed by SIGKILL; servers and nodes are started again as
their owner would, the trainer by its own command. Before each kill the calls on record are noted.
At the end: each call that was on record is there with the same tokens, each step has its rollouts
once, each token is of the version that its step began with, and every trajectory is lintless.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.vllm.launch import LaunchOptions, VllmProcess
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.lint import lint
from tests.support.processes import children_that_run
from tests.support.ray_cluster import add_node, running_cluster, with_nodes
from tests.support.vllm.server import MISSING, OPTIONS, find_python

POLICY = "builtin:cold-start"
PROMPTS, GROUP = 4, 4
ROLLOUTS = PROMPTS * GROUP * 2
Calls = dict[str, tuple[int, ...]]


class Servers:
    """Two servers on fixed ports."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._options = LaunchOptions(model_folder(POLICY), str(python), OPTIONS)
        self._folder = folder
        self._running = [self._start(number) for number in range(2)]

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self._running]

    def kill(self, chance: random.Random) -> None:
        number = chance.randrange(2)
        with suppress(ProcessLookupError):
            os.killpg(self._running[number].pid, signal.SIGKILL)

    def mend(self) -> None:
        """Restart the servers that have ended."""
        for number, each in enumerate(self._running):
            if each.ended is not None:
                each.stop()
                self._running[number] = self._start(number, each.port)

    def wait(self) -> None:
        for each in self._running:
            while not answers(each.url):
                assert each.ended is None, each.ended
                time.sleep(0.5)

    def stop(self) -> None:
        for each in self._running:
            each.stop()

    def _start(self, number: int, port: int | None = None) -> VllmProcess:
        return VllmProcess(self._options, self._folder / f"server-{number}.log", port=port)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url.removesuffix('/v1')}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def on_two_servers() -> Iterator[tuple[Servers, Path]]:
    python = find_python()
    if python is None:
        sys.exit(MISSING)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as kept:
        servers = Servers(python, Path(kept))
        try:
            servers.wait()
            yield servers, Path(kept)
        finally:
            servers.stop()


def calls_of(folder: Path) -> Calls:
    """The tokens of each call on record."""
    if not (folder / "store.db").exists():
        return {}
    with open_store(folder / "store.db", create=False) as store:
        headers = list(store.journal.headers("run_id = ?", (folder.name,)))
        return {
            call.id: call.token_ids
            for header in headers
            for call in store.journal.with_calls(header).own_calls
        }


class Nodes:
    """Two nodes of a Ray cluster, each with room for one worker."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = with_nodes(cluster, 2)

    @property
    def address(self) -> str:
        return self._cluster.address

    def kill(self, chance: random.Random) -> None:
        """Kill one node with all its processes, and let another join."""
        node = chance.choice(sorted(self._cluster.worker_nodes, key=lambda each: each.unique_id))
        self._cluster.remove_node(node, allow_graceful=False)
        add_node(self._cluster)

    def workers(self) -> list[int]:
        """Process ids of the actors that run graphs."""
        found: list[int] = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if any(word.startswith("ray::") and "IDLE" not in word for word in child.cmdline()):
                    found.append(child.pid)
        return found


def trainer(
    folder: Path, steps: int, seed: int, urls: list[str], ray: str = ""
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "hrm_agent",
        "train",
        "rl",
        "--steps",
        str(steps),
        "--seed",
        str(seed),
    ]
    command += ["--prompts-per-step", str(PROMPTS), "--group-size", str(GROUP), "--processes", "2"]
    command += [
        "--engine",
        "vllm",
        *(word for url in urls for word in ("--servers", f"vllm:{url}")),
    ]
    command += ["--weights-folder", str(weights_of(folder)), *(["--ray", ray] if ray else [])]
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--out", str(folder)], stdout=log, stderr=log, start_new_session=True
        )


def weights_of(folder: Path) -> Path:
    """Folder of a run's weights for its servers."""
    return folder.with_suffix(".weights")


class Run:
    """A training that is killed now and then until it has ended."""

    def __init__(
        self, folder: Path, steps: int, seed: int, servers: Servers, nodes: Nodes | None
    ) -> None:
        self.folder, self.steps, self.seed, self.servers, self.nodes = (
            folder,
            steps,
            seed,
            servers,
            nodes,
        )
        self.known: Calls = {}
        self.kills: Counter[str] = Counter()
        self.ended = 0
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return trainer(
            self.folder,
            self.steps,
            self.seed,
            self.servers.urls,
            self.nodes.address if self.nodes else "",
        )

    def go_on(self, chance: random.Random) -> bool:
        """Kill a process, and start it again. Return False if the training has ended."""
        published = self._published()
        at_a_publish, until = chance.random() < 0.5, time.monotonic() + chance.uniform(2, 25)
        while time.monotonic() < until or (at_a_publish and self._published() <= published):
            self.servers.mend()
            code = self._process.poll()
            if code == 0:
                return False
            if code is not None:
                self._go_on_after_an_end()
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1) if at_a_publish else 0)
        self.known |= calls_of(self.folder)
        what = chance.choices(
            ["trainer", "worker", "server", "node"], [3, 3, 2, 3 if self.nodes else 0]
        )[0]
        if what == "server":
            self.servers.kill(chance)
        elif what == "worker":
            workers = self._workers()
            if not workers:
                return True
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        elif what == "node" and self.nodes:
            self.nodes.kill(chance)
        else:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = self._started()
        self.kills[what] += 1
        self.kills["at a publish"] += at_a_publish
        return True

    def _published(self) -> set[str]:
        """Names of the weights that lie there for the servers."""
        return {path.name for path in weights_of(self.folder).rglob("*.safetensors")}

    def _workers(self) -> list[int]:
        if self.nodes:
            return self.nodes.workers()
        return [
            child.pid
            for child in children_that_run(
                "hrm_agent.training.workers.process", psutil.Process(self._process.pid)
            )
        ]

    def _go_on_after_an_end(self) -> None:
        """Start the command again. It ends with a message if a worker is killed while the first
        ones start.
        """
        said = self.folder.with_suffix(".log").read_text()[-3000:]
        assert self._process.returncode == 2 and "before it was ready" in said, said
        self.ended += 1
        self._process = self._started()

    def finish(self) -> None:
        """Let the run end, without further kills."""
        while (code := self._process.poll()) != 0:
            self.servers.mend()
            if code is not None:
                self._go_on_after_an_end()
            time.sleep(0.5)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def check(self) -> int:
        """Number of calls on record. Raises `AssertionError` if data was lost or duplicated."""
        with open_store(self.folder / "store.db", create=False) as store:
            headers = list(store.journal.headers("run_id = ?", (self.folder.name,)))
            steps = Counter(
                each.thread_id.split("/")[1]
                for each in headers
                if not each.thread_id.endswith("again")
            )
            assert steps == {f"step-{step}": ROLLOUTS for step in range(self.steps)}, steps
            calls = 0
            for header in headers:
                found = store.journal.with_calls(header)
                assert found.status is not RunStatus.RUNNING, found.thread_id
                assert lint(found) == [], found.thread_id
                version = int(found.thread_id.split("/")[1].removeprefix("step-"))
                assert {call.policy_version for call in found.own_calls} == {version}, (
                    found.thread_id
                )
                assert len({call.id for call in found.own_calls}) == len(found.own_calls)
                calls += len(found.own_calls)
        now = calls_of(self.folder)
        assert {name: now.get(name) for name in self.known} == self.known
        rows = [
            json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()
        ]
        assert [row["step"] for row in rows] == list(range(self.steps))
        assert max(row["engine_difference"] for row in rows) < 1e-4
        return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument(
        "--steps", type=int, default=6, help="of each training; there are as many as the kills need"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=60, help="after which nothing more is killed"
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="workers on two nodes of a Ray cluster, which are killed too",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chance, started = random.Random(options.seed), time.monotonic()
    kills: Counter[str] = Counter()
    calls = runs = 0

    def is_over() -> bool:
        return (
            kills.total() - kills["at a publish"] >= options.kills
            or time.monotonic() - started > options.minutes * 60
        )

    with (
        on_two_servers() as (servers, folder),
        running_cluster() if options.ray else nullcontext() as cluster,
    ):
        nodes = Nodes(cluster) if options.ray else None
        while not is_over():
            run = Run(folder / f"run-{runs}", options.steps, options.seed + runs, servers, nodes)
            try:
                before = kills.copy()
                while not is_over() and run.go_on(chance):
                    kills = before + run.kills
                    sys.stdout.write(f"{time.monotonic() - started:6.0f} s: {dict(kills)}\n")
                    sys.stdout.flush()
                run.finish()
                calls += run.check()
            finally:
                run.end()
            runs += 1
            sys.stdout.write(f"run {runs}: all there, nothing twice; {calls} calls so far\n")
    result = {
        "kills": dict(kills),
        "runs": runs,
        "calls": calls,
        "seconds": time.monotonic() - started,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
