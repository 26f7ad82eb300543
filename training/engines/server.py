"""One vLLM server of a fleet, present or away, started here or elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.engine import VllmEngine, open_vllm
from hrm_agent.models.vllm.launch import LaunchOptions, VllmProcess
from hrm_agent.models.vllm.server import ServerGoneError, ServerSilentError, parse_address
from hrm_agent.models.vllm.weights import Compared, ServerFacts, Watched, WeightsClient
from hrm_agent.training.engines.costs import IterationCosts, measure_costs
from hrm_agent.training.engines.weights import Publication
from hrm_agent.trajectory import Sampling

__all__ = ["FleetOptions", "FleetServer", "Shown"]

_SICK_LOOKS = 3
"""Number of consecutive missed health checks after which a server is lost."""
_STARTS = 3
"""Maximum number of consecutive starts of one server without an answer."""
_SAMPLE = Sampling(temperature=1.0, max_tokens=48, seed=1)
_ONE_TOKEN = Sampling(temperature=1.0, max_tokens=1, seed=1)
_SAMPLE_SECONDS = 120.0
_COUNT_SECONDS = 2.0
"""Maximum seconds that a server's counters lag behind its answers."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Servers of a fleet, and how they are run."""

    run: Path
    """Folder of the run. Logs go to its subfolder `engines`."""
    servers: tuple[str, ...] = ()
    """`vllm:URL?OPTIONS` of servers started elsewhere."""
    launch: LaunchOptions | None = None
    """Launch options of servers started here."""
    count: int = 0
    """Number of servers started here."""
    tokenizer: str = ""
    """Folder of the servers' tokenizer (empty: the tokenizer that each server reports)."""
    weights: Path | None = None
    """Folder for weights, visible to trainer and servers (None: a folder in the memory of this
    machine).
    """
    collective: bool = False
    """True if weights are sent to the servers' workers, without a folder."""
    address: str = ""
    """Address of this machine from which weights are sent (empty: the address that faces each
    server).
    """
    tolerance: float | None = None
    """Maximum difference of log-probs after a publish (None: chosen by the dtype of the weights).
    """
    unproved: bool = False
    """True if weights that cannot be compared are trusted."""
    base: Path | None = None
    """Folder of the base weights of an adapter."""
    abort: bool = False
    """True if requests in progress at a publish are sent again with the new weights, instead of
    being waited for.
    """
    patience: float = 600.0
    """Timeout in seconds, used three times: requests wait so long for a server to be present, a
    publish waits so long for a server to finish its requests, and a server may report nothing on
    its requests for so long.
    """


@dataclass(frozen=True, slots=True)
class Shown:
    """Evidence that a server has given of its weights."""

    compared: Compared
    """Comparison of the server's tensors with the trainer's."""
    sample: Completion | None
    """Sample taken as in any rollout, after the tokens of `head` (None if not requested)."""
    kept_cache: bool
    """True if the server's cache still had keys and values of the previous weights."""
    watched: Watched
    """State of the server after comparison and sample."""


class FleetServer:
    """One vLLM server: its process, its connections, and the weights it was given."""

    def __init__(self, number: int, options: FleetOptions) -> None:
        """`number`: index among all servers. Those below `options.count` are started here, and the
        others are listed in `options.servers`.
        """
        self.name = f"server-{number}"
        self.engine: VllmEngine | None = None
        """Engine to sample with (None while the server is away)."""
        self.facts: ServerFacts | None = None
        """Cache size and other facts (None while the server is away)."""
        self.refused: ModelError | None = None
        """Error for which the server is given up (None if it is not)."""
        self.took: int | None = None
        """Version of the weights that the server was given last (None if it has been away since).
        """
        self.proved: Watched | None = None
        """State at the server's last proof (None if it was given weights since, or was away)."""
        self._options = options
        self._number = number
        self._given = "" if number < options.count else options.servers[number - options.count]
        self._process: VllmProcess | None = None
        self._weights: WeightsClient | None = None
        self._adapter = ""
        self._base_compared = False
        """True if the base weights of adapters were compared. They are compared once, since digests
        show later changes.
        """
        self._counts = True
        """True if the server counts lookups in its cache."""
        self._unanswered = self._starts = 0

    @property
    def url(self) -> str:
        """URL of the server (its name before it is started)."""
        if self._given:
            return parse_address(self._given).url
        return self._process.url if self._process is not None else self.name

    @property
    def kind(self) -> tuple[str, ServerFacts | None]:
        """Kind of server, equal for servers with equal costs. Servers started here are of one kind
        if their facts are equal. Another server is of one kind with itself: the same address,
        options and facts.
        """
        return self._given, self.facts

    @property
    def dtype(self) -> str:
        """Dtype of the server's weights."""
        assert self.facts is not None
        return self.facts.dtype

    @property
    def pid(self) -> int | None:
        """Process id of a running server started here (None for others)."""
        return (
            self._process.pid if self._process is not None and self._process.ended is None else None
        )

    def look(self) -> str | None:
        """Check on the server, and connect to it if it has come. Return the reason if the server is
        lost (None if not). If it is to be refused, raises the error.

        If a server that belongs to this fleet does not run, it is started.
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
        self.end()
        return f"it has not answered {_SICK_LOOKS} times"

    def is_there(self) -> bool:
        """True if the server answers now."""
        return (self._process is None or self._process.ended is None) and self._healthy()

    def take(self, publication: Publication) -> None:
        """Load the weights of a version, and label its samples with that version from now on."""
        engine, weights = self._here()
        self.proved = None
        engine.cache_salt = ""
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

    def head(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Repeat these tokens until they fill more than a block of the server's cache. A shorter
        prompt would never be cached.
        """
        engine, _ = self._here()
        assert self.facts is not None
        most = (engine.max_length or 1 << 20) // 2
        wanted = min(most, 2 * self.facts.block_tokens + len(token_ids))
        return tuple((list(token_ids) * (wanted // len(token_ids) + 1))[:wanted])

    def prime(self, publication: Publication) -> None:
        """Put the beginning of the next proof's prompt into the server's cache."""
        if self.proved is not None:
            self._sampled(self.head(publication.texts[0].token_ids), _ONE_TOKEN)

    def show(self, publication: Publication, *, sampled: bool) -> Shown:
        """Compare the server's tensors, sample if `sampled`, and read the server's state
        afterwards.
        """
        _, weights = self._here()
        compared = self._compared(publication)
        sample = None
        kept = False
        if sampled:
            before = weights.cache_hits() if self._counts else None
            sample = self._sampled(self.head(publication.texts[0].token_ids), _SAMPLE)
            kept = before is not None and self._found_since(before)
        return Shown(compared, sample, kept, self.watch(digest=True))

    def watch(self, *, digest: bool) -> Watched:
        """Current state of the server. With `digest`, the server reads all its weights."""
        return self._here()[1].watch(digest=digest)

    def salt(self, salt: str) -> None:
        """Set the salt of the server's cache. From the next request on, requests share the cache
        only with those of the same salt.
        """
        self._here()[0].cache_salt = salt

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of a text's tokens but the first."""
        return self._here()[1].logprobs(token_ids, self._adapter or None)

    def measured(self) -> IterationCosts:
        """Measure the server's iteration costs. It must get no other requests meanwhile. Its cache
        is empty afterwards.
        """
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

    def forget(self) -> None:
        """Drop the connections and the state of a server that is away."""
        engine = self.engine
        weights = self._weights
        self.engine = self._weights = self.facts = self.took = self.proved = None
        self._adapter = ""
        self._base_compared = False
        self._counts = True
        self._unanswered = 0
        if engine is not None:
            engine.close()
        if weights is not None:
            weights.close()

    def end(self) -> None:
        """Stop a server started here, for example if it hangs. The next `look` starts another."""
        if self._process is not None:
            self._process.stop()

    def refuse(self, error: ModelError) -> None:
        """Give the server up for an error."""
        self.refused = error

    def close(self) -> None:
        """Disconnect, and stop a server started here."""
        self.forget()
        self.end()

    def _sampled(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        engine, _ = self._here()
        try:
            return engine.submit(GenerationRequest(tuple(prompt), sampling)).result(_SAMPLE_SECONDS)
        except TimeoutError as error:
            said = (
                f"The vLLM server at {self.url} has not sampled {sampling.max_tokens} tokens in"
                f" {_SAMPLE_SECONDS:g} s."
            )
            raise ServerSilentError(
                said, "See its log; `hrm-agent resume` continues a run that stopped."
            ) from error

    def _found_since(self, before: tuple[float, float]) -> bool:
        """True if the server found any token in its cache since `before`. Its counters lag a
        little, so this waits for them.
        """
        _, weights = self._here()
        until = time.monotonic() + _COUNT_SECONDS
        while (now := weights.cache_hits() or before)[0] <= before[0] and time.monotonic() < until:
            time.sleep(_COUNT_SECONDS / 40)
        self._counts = now[0] > before[0]  # a server without a prefix cache is not asked again
        return now[1] > before[1]

    def _compared(self, publication: Publication) -> Compared:
        _, weights = self._here()
        if not publication.adapter:
            with self._offered(publication) as source:
                return weights.compared(source)
        found = weights.compared(str(publication.source))
        if self._options.base is None or self._base_compared:
            return found
        try:
            base = weights.compared(str(self._options.base))
        except ServerGoneError as error:
            if not self.is_there():
                raise
            return replace(
                found, unknown=(*found.unknown, f"what the adapter stands on: {error.message}")
            )
        self._base_compared = not base.unknown
        return replace(
            found,
            differing=(*found.differing, *base.differing),
            unknown=(*found.unknown, *base.unknown),
        )

    def _here(self) -> tuple[VllmEngine, WeightsClient]:
        engine = self.engine
        weights = self._weights
        if engine is None or weights is None:
            raise ServerGoneError(
                f"The vLLM server at {self.url} is away.",
                "Wait until it is back, or resume the run.",
            )
        return engine, weights

    @contextmanager
    def _offered(self, publication: Publication) -> Generator[str]:
        """Source of all weights, as text for the server. Valid in the block."""
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
                f"A vLLM server was started {_STARTS} times and never answered: the last one"
                f" {ended}",
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
            # no timeout: the watcher of its tokens finds out if the server falls silent
            engine = open_vllm(name, seconds=math.inf)
            weights = WeightsClient(engine.address, engine.model, self._options.patience)
            facts = weights.facts()
            weights.watch()  # raises if the server cannot take weights
            if self._options.collective and facts.replicas > 1:
                raise ModelError(
                    f"The vLLM server at {self.url} has {facts.replicas} replicas, but weights can"
                    " reach only one.",
                    "Set weights_by = file, or start one server per replica in place of"
                    " --data-parallel-size.",
                )
        except ServerGoneError:
            return  # checked again later
        self.engine = engine
        self._weights = weights
        self.facts = facts
        self._starts = 0
