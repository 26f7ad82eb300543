"""One vLLM server of a fleet: there or away, ours or others'."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.engine import VllmEngine, open_vllm
from hrm_agent.models.vllm.launch import LaunchOptions, VllmProcess
from hrm_agent.models.vllm.server import ServerGoneError, parse_address
from hrm_agent.models.vllm.weights import ServerFacts, WeightsClient
from hrm_agent.training.iteration_costs import IterationCosts, measure_costs
from hrm_agent.training.weights_file import Publication
from hrm_agent.trajectory import Sampling

__all__ = ["FleetOptions", "FleetServer"]

_SICK_LOOKS = 3
"""Looks in a row that a server may leave unanswered."""
_STARTS = 3
"""Of one server, one after another without its ever answering."""
_SAMPLE = Sampling(temperature=1.0, max_tokens=48, seed=1)
_SAMPLE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Which servers, and how they are dealt with."""

    run: Path
    """The run's folder: logs go to `engines` in it."""
    servers: tuple[str, ...] = ()
    """`vllm:URL?OPTIONS` of servers that others started."""
    launch: LaunchOptions | None = None
    """How servers of our own are started."""
    count: int = 0
    """Number of servers of our own."""
    tokenizer: str = ""
    """Folder of the tokenizer that they are to have; empty: what they say."""
    weights: Path | None = None
    """Folder that trainer and servers see, for weights; None: the memory of this machine."""
    collective: bool = False
    """Weights are sent to the servers' workers, and lie in no folder."""
    address: str = ""
    """Of this machine, for weights that are sent; empty: the one that it has towards each server."""
    tolerance: float | None = None
    """How far log-probs may differ after a publish; None: by dtype."""
    abort: bool = False
    """Requests under way at a publish are asked again with the new weights, in place of being waited for."""
    patience: float = 600.0
    """Seconds that requests wait for a server to be there, and a publish for one to be done."""


class FleetServer:
    """One vLLM server: its process, its connections, and the weights it was given."""

    def __init__(self, number: int, options: FleetOptions) -> None:
        """The first `options.count` are ours; the others stand in `options.servers`."""
        self.name = f"server-{number}"
        self.engine: VllmEngine | None = None
        """To sample with; None while it is away."""
        self.facts: ServerFacts | None = None
        """Size of its cache, and so on; None while it is away."""
        self.refused: ModelError | None = None
        """Why nothing more is expected of it."""
        self.took: int | None = None
        """Version of the weights that it was given; None since it was last away."""
        self._options, self._number = options, number
        self._given = "" if number < options.count else options.servers[number - options.count]
        self._process: VllmProcess | None = None
        self._weights: WeightsClient | None = None
        self._adapter = ""
        self._unanswered = self._starts = 0

    @property
    def url(self) -> str:
        """Where it is; its name before it was started."""
        if self._given:
            return parse_address(self._given).url
        return self._process.url if self._process is not None else self.name

    @property
    def kind(self) -> tuple[str, ServerFacts | None]:
        """Equal for servers that cost the same: the same one with the same options, and all of ours."""
        return self._given, self.facts

    @property
    def dtype(self) -> str:
        """Of its weights."""
        assert self.facts is not None
        return self.facts.dtype

    @property
    def pid(self) -> int | None:
        """Of one of ours that runs."""
        return self._process.pid if self._process is not None and self._process.ended is None else None

    def look(self) -> str | None:
        """See whether it is there, and what it is if it has come; why it is lost, if it is. Raises what it refuses by.

        One of ours is started where it does not run.
        """
        if self.refused is not None:
            return None
        ended = self._process.ended if self._process is not None else None
        if not self._given and (self._process is None or ended is not None):
            self._start(ended)
            return f"it {ended.splitlines()[0]}" if ended is not None else None
        if self._healthy():
            self._unanswered = 0
            if self.engine is None:
                self._open()
            return None
        if self.engine is None:
            return None
        self._unanswered += 1
        if self._unanswered < _SICK_LOOKS:
            return None
        if self._process is not None:  # it may hang for ever: the next look starts another
            self._process.stop()
        return f"it has not answered {_SICK_LOOKS} times"

    def is_there(self) -> bool:
        """Whether it answers now."""
        return (self._process is None or self._process.ended is None) and self._healthy()

    def take(self, publication: Publication) -> None:
        """Give it the weights of a version, and name that version in what it samples from now on."""
        engine, weights = self._here()
        if publication.adapter:
            assert isinstance(publication.source, Path)
            weights.take_adapter(publication.source, publication.adapter)
        else:
            with self._offered(publication) as source:
                weights.take(source, publication.version)
        self.took = publication.version
        engine.serve(publication.version, publication.adapter)
        if self._adapter and self._adapter != publication.adapter:
            weights.drop_adapter(self._adapter)
        self._adapter = publication.adapter

    def sample(self, prompt: Sequence[int]) -> Completion:
        """Sampled as any rollout is."""
        engine, _ = self._here()
        return engine.submit(GenerationRequest(tuple(prompt), _SAMPLE)).result(_SAMPLE_SECONDS)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Of a text's tokens but the first."""
        return self._here()[1].logprobs(token_ids, self._adapter or None)

    def measured(self) -> IterationCosts:
        """What its iterations cost. Nobody else may ask it meanwhile; its cache is empty afterwards."""
        engine, weights = self._here()
        assert self.facts is not None

        def ask(prompts: Sequence[Sequence[int]], sampled: int) -> float:
            started = time.perf_counter()
            weights.sample(prompts, sampled, self._adapter or None)
            return time.perf_counter() - started

        sizes = {"max_running": self.facts.max_running, "kv_tokens": self.facts.kv_tokens}
        found = measure_costs(ask, **sizes, max_length=engine.max_length)
        weights.drop_cache()
        return found

    def differing(self, publication: Publication) -> list[str]:
        """Tensors of its weights that are known to differ from those of a version."""
        _, weights = self._here()
        if publication.adapter:
            return []
        with self._offered(publication) as source:
            return weights.differing(source)[0]

    def forget(self) -> None:
        """It is away."""
        engine, weights = self.engine, self._weights
        self.engine = self._weights = self.facts = self.took = None
        self._adapter = ""
        self._unanswered = 0
        if engine is not None:
            engine.close()
        if weights is not None:
            weights.close()

    def refuse(self, error: ModelError) -> None:
        """Expect nothing more of it."""
        self.refused = error

    def close(self) -> None:
        """It is needed no more: one of ours ends."""
        self.forget()
        if self._process is not None:
            self._process.stop()

    def _here(self) -> tuple[VllmEngine, WeightsClient]:
        engine, weights = self.engine, self._weights
        if engine is None or weights is None:
            raise ServerGoneError(f"The vLLM server at {self.url} is away.", "It is waited for; or resume the run.")
        return engine, weights

    @contextmanager
    def _offered(self, publication: Publication) -> Generator[str]:
        """What the server is told of where all weights are to be had; valid within."""
        _, weights = self._here()
        if isinstance(publication.source, Path):
            yield str(publication.source)
            return
        with publication.source.offered(self.url, weights.gpus()) as offer:
            yield offer

    def _start(self, ended: str | None) -> None:
        launch = self._options.launch
        assert launch is not None, "only servers of our own have no address"
        if self._starts == _STARTS:
            raise ModelError(
                f"A vLLM server was started {_STARTS} times and never answered: the last one {ended}",
                "Mend what its log says; --server-options takes further options of `vllm serve`.",
            )
        self._starts += 1
        log = self._options.run / "engines" / f"{self.name}.log"
        sys.stderr.write(f"hrm-agent: starting a vLLM server; it writes to {log}.\n")
        self._process = VllmProcess(launch, log, self._number)

    def _healthy(self) -> bool:
        address = parse_address(self._given or f"vllm:{self.url}")
        weights = self._weights
        if weights is not None:
            return weights.is_healthy()
        with suppress(ModelError):
            asked = WeightsClient(address, "")
            try:
                return asked.is_healthy()
            finally:
                asked.close()
        return False

    def _open(self) -> None:
        name = self._given or f"vllm:{self.url}"
        if self._options.tokenizer and "tokenizer=" not in name:
            name += f"{'&' if '?' in name else '?'}tokenizer={self._options.tokenizer}"
        try:
            engine = open_vllm(name)
            weights = WeightsClient(engine.address, engine.model)
            facts = weights.facts()
            weights.version()  # says whether it takes weights at all
            self._refuse_replicas(facts)
        except ServerGoneError:
            return  # looked at again
        self.engine, self._weights, self.facts, self._starts = engine, weights, facts, 0

    def _refuse_replicas(self, facts: ServerFacts) -> None:
        if self._options.collective and facts.replicas > 1:
            raise ModelError(
                f"The vLLM server at {self.url} has {facts.replicas} sets of workers, and weights can be sent to one.",
                "Set weights_by = file, or start a server for each in place of --data-parallel-size.",
            )
