"""A server of chat completions on a real socket, in this process, with a real store and sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.runtime.serving.server import ChatService, serving
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import Trajectory
from tests.support.graphs.scripts import multiplier

TOKEN = "a-token"
GRAPHS = (
    "tool_loop",
    "reasoning",
    "research",
    "tests.support.serving.agents:asking",
    "tests.support.serving.agents:broken",
)


class PatientTongue(ScriptedEngine):
    """Engine that continues after a token once `heard` returns. `heard` gets its answer so far."""

    heard: Callable[[str], None] | None = None

    def submit(self, request: Any) -> Any:
        tell, heard, said = request.on_token, self.heard, list[int]()

        def patiently(token: int) -> None:
            tell(token)
            said.append(token)
            if heard is not None:
                heard(self.codec.decode(said))

        return super().submit(replace(request, on_token=patiently) if tell else request)


@dataclass
class Served:
    url: str
    engine: PatientTongue
    store: RunStore
    service: ChatService

    def client(self, retries: int = 0) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=TOKEN, max_retries=retries)

    def only(self) -> Trajectory:
        [trajectory] = self.store.journal.trajectories()
        return trajectory


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture(scope="module")
def environment() -> Iterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=4)
    yield environment
    environment.shutdown()


@pytest.fixture
def serve(tmp_path: Path, environment: LocalEnvironment) -> Serve:
    @asynccontextmanager
    async def served(
        script: Any = multiplier,
        *,
        delay: Any = 0,
        codec: Any = None,
        drain: float = 0.2,
        graphs: Sequence[str] = GRAPHS,
        **options: Any,
    ) -> AsyncIterator[Served]:
        listener = listen_tcp("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            PatientTongue(script, delay=delay, codec=codec) as engine,
            open_store(tmp_path / "store.db") as store,
        ):
            runner = EpisodeRunner(store, engine, "scripted", environment)
            service = ChatService(runner, graphs, TOKEN, hosts=("127.0.0.1",), **options)
            async with serving(service, listener, drain_seconds=drain):
                yield Served(url, engine, store, service)

    return served
