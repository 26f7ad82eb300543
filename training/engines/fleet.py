"""Fleet of vLLM servers as the engine of a training. The fleet starts or finds its servers, watches
them, gives them new weights and proves that they use these weights.

To graphs and to the trainer a fleet is one engine. `publish` gives every running server the weights
of the next version. Meanwhile the server gets no requests: it ends or gives back the requests in
progress, takes the weights (from a file, or as the trainer sends them), drops its cache, and is
compared with the trainer (`hrm_agent.training.engines.weights`). A request is answered by one
version from its first token to its last, and the answer names it.

Each server has a watcher thread, which checks whether the server is present, whether it still is as
it was proved, and how many tokens each of its requests has. If a server ends, or reports nothing
about a request for a while, its rollouts go to the other servers. A server started here is
restarted. A server that is back gets the current weights and is proved before its first request.
While no server is present, requests wait for at most `patience` seconds. `vouch` checks all servers
at once, before a step's rollouts are trained on.

If the scheduling policy uses iteration costs, these are measured once per kind of server, before
the first request. A server that comes back, or a further server started here, is not measured
again.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from statistics import fmean
from typing import Any

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.chat_template import PolicyCodec
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.server import ServerGoneError, ServerSilentError
from hrm_agent.models.vllm.weights import Watched
from hrm_agent.training.engines.costs import IterationCosts
from hrm_agent.training.engines.router import EngineRouter
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.server import FleetOptions, FleetServer, Shown
from hrm_agent.training.engines.weights import (
    PROBE_TEXT,
    LogprobDifference,
    OtherWeightsError,
    Publication,
    ScoredText,
    WeightsBroadcast,
    WeightsFolder,
    refuse_kept_cache,
    refuse_other_weights,
    refuse_unknown,
)
from hrm_agent.trajectory import LogprobKind

__all__ = ["EngineFleet", "FleetCosts", "FleetProof", "FleetWatch"]

_LEAST_SECONDS = 10.0
"""Minimum seconds between two digests of all weights."""
_SHARE = 0.01
"""Maximum share of a server's time that digests take."""


class FleetWatch:
    """Watches one server of a fleet."""

    def __init__(self, server: FleetServer, router: EngineRouter) -> None:
        self._server = server
        self._router = router
        self._proved: Watched | None = None
        self._next_digest = 0.0
        self._same = self._same_digest = 0
        """Number of the server's answers at the last successful check: of any check, and of a check
        by digest.
        """

    def begin(self) -> None:
        """Begin to watch a proved server, which gets requests from now on."""
        self._proved = self._server.proved
        self._same = self._same_digest = self._router.answered(self._server.name)

    def look(self, *, digest: bool = False) -> Watched | None:
        """Check that the server still is as it was proved, and report the progress of its requests
        to the router. Return the server's state (None if nothing was proved).

        `digest`: compute a digest of all weights, even if none is due. If the server has changed,
        raises `OtherWeightsError` if it has answered a request since the last successful check,
        else `ServerGoneError`.
        """
        server = self._server
        proved = self._server.proved
        if proved is None:
            return None
        began = time.monotonic()
        answered = self._router.answered(server.name)
        digest = digest or began >= self._next_digest
        try:
            found = server.watch(digest=digest)
        except ServerGoneError:
            if server.proved is proved:
                raise
            return None  # the server was given other weights while this check waited
        if digest:
            took = time.monotonic() - began
            self._next_digest = began + max(_LEAST_SECONDS, took / _SHARE)
        if found.tokens is not None:
            self._router.heard(server.name, found.tokens)
        if server.proved is not proved or self._proved is not proved:
            return found  # the server was given other weights meanwhile, or gets no requests yet
        if found.identity != proved.identity:
            self._refuse("It was started again, or given weights by somebody else,", self._same)
        if digest and found.digest != proved.digest:
            self._refuse("Something has written over its weights", self._same_digest)
        self._same, self._same_digest = answered, answered if digest else self._same_digest
        return found

    def _refuse(self, what: str, same: int) -> None:
        server = self._server
        since = self._router.answered(server.name) - same
        if since <= 0:
            raise ServerGoneError(f"{what} since its proof", "It is given the weights anew.")
        raise OtherWeightsError(
            f"The engine at {server.url} is not what it was proved to be with version"
            f" {server.took}: {what} after its proof, and it has answered {since} requests since it"
            " was last seen to be the same.",
            "Nothing was trained on this step, and the answers are on record: remove the step's"
            " threads with `hrm-agent store delete` before `hrm-agent resume`, or it learns from"
            " them. Look at what else reaches the server: nobody else may restart it under its"
            " address, or change its weights, while a training runs.",
        )


class FleetProof:
    """Verifies servers against publications."""

    def __init__(
        self, options: FleetOptions, score: Callable[[Sequence[int]], list[float]]
    ) -> None:
        """`score`: the trainer's log-prob of each token of a text but the first."""
        self._options = options
        self._score = score
        self._said: set[str] = set()

    def scored(self, token_ids: Sequence[int]) -> ScoredText:
        """A text with the trainer's log-probs."""
        return ScoredText(tuple(token_ids), tuple(self._score(token_ids)))

    def prove(
        self, server: FleetServer, publication: Publication, shown: Shown
    ) -> tuple[Publication, LogprobDifference]:
        """Return the publication with the server's sample added, to verify others with, and the
        server's difference of log-probs.

        Raises `OtherWeightsError` if the difference is too large, or if weights cannot be compared
        and the options do not say to trust them.
        """
        texts = publication.texts[:1]
        differences = list[LogprobDifference]()
        if shown.sample is not None:
            ids = (*server.head(publication.texts[0].token_ids), *shown.sample.token_ids)
            fresh = self.scored(ids)
            sampled = shown.sample.logprobs
            differences.append(LogprobDifference.of(fresh.logprobs[-len(sampled) :], sampled))
            texts = (*texts, fresh)
        else:
            texts = publication.texts
        differences += [
            LogprobDifference.of(text.logprobs, server.logprobs(text.token_ids)) for text in texts
        ]
        found = LogprobDifference(
            max(each.largest for each in differences), max(each.mean for each in differences)
        )
        where = server.url
        version = publication.version
        refuse_other_weights(
            where=where,
            version=version,
            dtype=server.dtype,
            tolerance=self._options.tolerance,
            found=found,
            differing=shown.compared.differing,
        )
        if shown.kept_cache:
            refuse_kept_cache(where, version)
        self._tell(
            refuse_unknown(where, version, shown.compared.unknown, trusted=self._options.unproved)
        )
        if shown.watched.digest != shown.compared.digest:
            raise OtherWeightsError(
                f"The engine at {where} had the weights of version {version}, but while it was"
                " proved, its weights changed.",
                "Let nobody else change the weights of a server while a training runs.",
            )
        server.proved = shown.watched
        return replace(publication, texts=texts), found

    def _tell(self, said: str | None) -> None:
        if said is not None and said not in self._said:
            self._said.add(said)
            sys.stderr.write(f"hrm-agent: {said}\n")


class FleetCosts:
    """Iteration costs by kind of server."""

    def __init__(self, router: EngineRouter) -> None:
        self._router = router
        self._known: dict[object, IterationCosts] = {}

    def of(self, server: FleetServer) -> IterationCosts | None:
        """Costs measured for the server's kind (None if not measured)."""
        return self._known.get(server.kind)

    def unmeasured(self, servers: Iterable[FleetServer]) -> list[FleetServer]:
        """Return one server of each unmeasured kind: a server that has the weights and gets no
        requests yet.
        """
        if not self._router.scheduler.policy.uses_costs:
            return []
        idle = (
            each
            for each in servers
            if each.took is not None and each.name not in self._router.names
        )
        return list({each.kind: each for each in idle if each.kind not in self._known}.values())

    def measure(self, server: FleetServer) -> None:
        """Measure the costs of the server's kind. Raises `ServerGoneError` if the server goes away
        meanwhile.
        """
        kind = server.kind
        try:
            self._known[kind] = server.measured()
        except ModelError as error:
            if not server.is_there():
                raise ServerGoneError(error.message, error.hint) from error
            sys.stderr.write(
                f"hrm-agent: what iterations at {server.url} cost is not known: {error.message}\n"
            )

    def metrics(self) -> dict[str, float]:
        """Mean costs over the kinds of servers (empty if no kind is measured)."""
        if not self._known:
            return {}
        costs = self._known.values()
        return {
            "iteration_seconds": fmean(each.weights_s + each.overhead_s for each in costs),
            "prompt_token_seconds": fmean(each.prompt_token_s for each in costs),
        }


_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 30.0


class EngineFleet:
    """Several vLLM servers, as an `Engine`."""

    def __init__(
        self,
        name: str,
        codec: PolicyCodec,
        options: FleetOptions,
        scheduler: RolloutScheduler,
        score: Callable[[Sequence[int]], list[float]],
    ) -> None:
        """`name`: recorded as the model of calls. `score`: the trainer's log-prob of each token of
        a text but the first.

        Returns when all servers are present, or after `patience` seconds if at least one is. Raises
        `ModelError` if none is. Requests wait for the first `publish`.
        """
        self.name = name
        self.codec = codec
        self.policy_version = 0
        self._options = options
        self._proof = FleetProof(options, score)
        self._router = EngineRouter(scheduler)
        self._salt = secrets.token_hex(8)
        self._formats: set[tuple[str, str]] = set()
        self._folder = None if options.collective else WeightsFolder(options.run, options.weights)
        self._publication: Publication | None = None
        self._servers = [
            FleetServer(number, options) for number in range(options.count + len(options.servers))
        ]
        self._watches = {server.name: FleetWatch(server, self._router) for server in self._servers}
        self._renewing = threading.Lock()
        self._closing = threading.Event()
        self._looked = threading.Condition()
        self._failure: ModelError | None = None
        self._logprob_kind: LogprobKind | None = None
        """Kind of log-probs of the first server that came."""
        self._told: dict[str, str] = {}
        """Name of a server -> last message reported about it, or the hint of its last reported
        error.
        """
        self._alone_since = time.monotonic()
        self._last: dict[str, float] = {}
        self._costs = FleetCosts(self._router)
        self._watchers = [
            threading.Thread(
                target=self._watch, args=(server,), name=f"engine {server.name}", daemon=True
            )
            for server in self._servers
        ]
        for watcher in self._watchers:
            watcher.start()
        try:
            self._wait_for_servers()
        except BaseException:
            self.close()
            raise

    @property
    def logprob_kind(self) -> LogprobKind:
        """Kind of log-probs of the servers, present or not."""
        assert self._logprob_kind is not None, "the constructor has waited for a server"
        return self._logprob_kind

    @property
    def servers(self) -> tuple[FleetServer, ...]:
        """All servers, present or not."""
        return tuple(self._servers)

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Send a request to the server that its rollout is placed on."""
        if self._failure is not None:
            raise self._failure
        return self._router.submit(request)

    def rollout_ended(self, thread: str, *, counted: bool = True) -> None:
        """End a rollout, which sends no more requests."""
        self._router.rollout_ended(thread, counted=counted)

    def formats(self) -> set[tuple[str, str]]:
        """Number formats of the proved servers: dtype and quantisation."""
        return set(self._formats)

    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last publish, and of all servers since the start."""
        load = self._router.scheduler.load()
        counts = {
            "engines": len(load.engines),
            "lost": self._router.lost,
            "asked_again": self._router.asked_again,
        }
        found = {name: float(value) for name, value in counts.items()} | {
            "moves": float(load.moves)
        }
        return found | self._last | self._costs.metrics()

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Give every server the weights of `version`, and prove that it samples with them.

        `state_dict`: all weights, by Hugging Face's names, or a function that writes an adapter to
        a folder. A server that is away gets the weights when it is back. Raises `ModelError` if a
        server took the weights and still samples with others.
        """
        started = time.monotonic()
        with self._renewing:
            if self._failure is not None:
                raise self._failure
            publication = self._written(version, state_dict)
            self._router.step_ended()
            self._publication = publication
            self.policy_version = version
            present = [server for server in self._servers if server.engine is not None]
            with ThreadPoolExecutor(len(self._servers)) as threads:
                taken = list(
                    threads.map(lambda server: self._renewed(server, publication), present)
                )
                list(threads.map(self._measure, self._costs.unmeasured(present)))
            largest = 0.0
            for server, shown in zip(present, taken, strict=True):
                if shown is None:
                    continue
                try:
                    self._publication, difference = self._proof.prove(server, publication, shown)
                    self._take_in(server)
                except ServerGoneError as error:
                    self._lose(server, error.message)
                    continue
                largest = max(largest, difference.largest)
            if self._folder is not None:
                self._folder.keep_only(version)
        self._last = {"publish_seconds": time.monotonic() - started, "proof_largest": largest}
        self._wait_for_servers(at_least=1)

    def vouch(self) -> None:
        """Verify that every server still is as it was proved, before the samples taken since its
        proof are trained on.

        Raises `ModelError` if a server has changed. If a server is gone, its rollouts have moved to
        the others.
        """
        # includes servers that the router has left after a dropped request
        there = [server for server in self._servers if server.proved is not None]
        with ThreadPoolExecutor(max(1, len(there))) as threads:
            list(threads.map(lambda server: self._seen(server, digest=True), there))
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the fleet and the servers started here. Pending requests fail with `ModelError`."""
        self._closing.set()
        self._router.close(
            ModelError(f"The engines of {self.name!r} are closed.", "Open new ones.")
        )
        with self._looked:
            self._looked.notify_all()
        until = time.monotonic() + _CLOSE_SECONDS
        for watcher in self._watchers:
            if watcher is not threading.current_thread():
                # the watcher may wait for a silent server
                watcher.join(max(0.0, until - time.monotonic()))
        with ThreadPoolExecutor(max(1, len(self._servers))) as threads:
            list(threads.map(lambda server: server.close(), self._servers))
        if self._folder is not None:
            self._folder.close()

    # weights

    def _written(self, version: int, state_dict: Any) -> Publication:
        text = self._proof.scored(self.codec.encode_answer(PROBE_TEXT))
        if self._folder is None:
            self._publication = None  # room for one copy is enough
            return Publication(
                version, WeightsBroadcast(state_dict, self._options.address), (text,)
            )
        if callable(state_dict):
            path = self._folder.place(version, adapter=True)
            state_dict(path)
        else:
            path = self._folder.write(version, state_dict)
        return Publication(version, path, (text,))

    def _renewed(self, server: FleetServer, publication: Publication) -> Shown | None:
        """Load the new weights into a server, and return its evidence of them (None if the server
        was lost).
        """
        self._router.hold(server.name)
        if server.name in self._router.names and not self._router.drain(
            server.name, abort=self._options.abort, seconds=self._options.patience
        ):
            self._lose(server, "it did not finish its requests in time")
            return None
        try:
            self._seen(server, digest=True)  # first check the server with the previous weights
            if self._failure is not None:
                raise self._failure
            if server.engine is None:
                return None
            server.salt("")
            server.prime(publication)
            server.take(publication)
            return server.show(publication, sampled=True)
        except ServerSilentError as error:
            self._lose(server, error.message)
            return None
        except ModelError as error:
            if isinstance(error, OtherWeightsError) or (
                server.engine is not None and server.is_there()
            ):
                raise
            self._lose(server, error.message)
            return None

    def _take_in(self, server: FleetServer) -> None:
        self._watches[server.name].begin()
        # its cache is never shared between versions
        server.salt(f"{self._salt}-{self.policy_version}")
        if server.name in self._router.names:
            self._router.release(server.name)
            return
        engine = server.engine
        facts = server.facts
        costs = self._costs.of(server)
        if engine is None or facts is None:
            raise ServerGoneError(
                f"The vLLM server at {server.url} was lost after its proof.",
                "Its watcher waits for it.",
            )
        self._formats.add((facts.dtype, facts.quantization))
        sizes = (facts.kv_tokens, facts.max_running)
        self._router.join(server.name, engine, *sizes, costs, block_tokens=facts.block_tokens)

    def _measure(self, server: FleetServer) -> None:
        try:
            self._costs.measure(server)
        except ServerGoneError as error:
            self._lose(server, error.message)

    def _lose(self, server: FleetServer, why: str, *, hangs: bool = False) -> None:
        others = [name for name in self._router.names if name != server.name]
        if server.name in self._router.names:
            then = (
                "no other engine is present, so its rollouts wait for one, at most"
                f" {self._options.patience:g} s"
            )
            then = "its rollouts go on in others" if others else then
            sys.stderr.write(
                f"hrm-agent: the engine at {server.url} is gone ({why.rstrip('.')}); {then}.\n"
            )
        self._router.leave(server.name)
        server.forget()
        if hangs:
            server.end()

    # The methods below run in watcher threads. A server is started in its watcher thread, which has
    # to live as long as the server.

    def _watch(self, server: FleetServer) -> None:
        while not self._closing.is_set():
            try:
                self._look_at(server)
                self._give_up_where_nobody_comes()
            # catch any error, since without a watcher requests would wait for ever
            except Exception as error:
                said = f"The watcher of the engines failed: {type(error).__name__}: {error}."
                self._fail(ModelError(said, "What was recorded is kept: resume the run."))
                return
            finally:
                with self._looked:
                    self._looked.notify_all()
            self._closing.wait(_LOOK_SECONDS)

    def _fail(self, error: ModelError) -> None:
        self._failure = error
        self._router.fail_all(error)

    def _look_at(self, server: FleetServer) -> None:
        try:
            gone = server.look()
            if gone is not None:
                self._lose(server, gone)
            self._refuse_other_logprobs(server)
            if server.name in self._router.names:
                self._seen(server)
            elif server.engine is not None:
                self._bring_up_to_date(server)
        except ServerGoneError as error:
            self._tell(server, error)
            self._lose(server, error.message)
        except ModelError as error:
            self._tell(server, error)
            self._lose(server, error.message)
            server.refuse(error)
            if isinstance(error, OtherWeightsError):  # its samples must not be trained on
                self._fail(error)

    def _seen(self, server: FleetServer, *, digest: bool = False) -> None:
        """Check that a server still is as it was proved, and that it reports on its requests. If
        not, the server is lost or the run fails.
        """
        try:
            found = self._watches[server.name].look(digest=digest)
        except OtherWeightsError as error:
            self._lose(server, error.message)
            self._fail(error)
            return
        except ModelError as error:
            self._lose(server, error.message, hangs=isinstance(error, ServerSilentError))
            return
        told = "reports no progress of its requests: the scheduler learns of it when they end"
        if (
            found is not None
            and found.tokens is None
            and self._router.scheduler.policy.watches_growth
            and self._told.get(server.name) != told
        ):
            self._told[server.name] = told
            sys.stderr.write(f"hrm-agent: the engine at {server.url} {told}.\n")
        if self._router.silent(server.name, self._options.patience):
            said = f"nothing was heard of one of its requests for {self._options.patience:g} s"
            self._lose(server, said, hangs=True)

    def _tell(self, server: FleetServer, error: ModelError) -> None:
        """Report why a late server was not taken in. This is reported once, although the server is
        tried again. At the start the error is raised instead.
        """
        if (
            self._publication is None
            or server.name in self._router.names
            or self._told.get(server.name) == error.hint
        ):
            return
        self._told[server.name] = error.hint
        sys.stderr.write(
            f"hrm-agent: the engine at {server.url} is not taken in: {error.message} {error.hint}\n"
        )

    def _refuse_other_logprobs(self, server: FleetServer) -> None:
        """Raise `ModelError` for another kind of log-probs, since the record names one kind for all
        calls of a run.
        """
        if server.engine is None:
            return
        self._logprob_kind = self._logprob_kind or server.engine.logprob_kind
        if server.engine.logprob_kind is not self._logprob_kind:
            raise ModelError(
                f"The vLLM server at {server.url} gives log-probs of another kind than the other"
                " servers.",
                "Start every server with --logprobs-mode processed_logprobs, like those that are"
                " started here.",
            )

    def _bring_up_to_date(self, server: FleetServer) -> None:
        """Give the current weights to a server that came after their publish. If a publish is in
        progress, do nothing, since the publish gives them.
        """
        if not self._renewing.acquire(blocking=False):
            return
        try:
            if server.name in self._router.names:
                return
            # The server may have dropped a request and answered others before, so it is checked
            # first.
            self._seen(server, digest=True)
            publication = self._publication
            if publication is not None and server.engine is not None:
                server.take(publication)
                for unmeasured in self._costs.unmeasured([server]):
                    self._measure(unmeasured)
                self._proof.prove(server, publication, server.show(publication, sampled=False))
                self._take_in(server)
        finally:
            self._renewing.release()

    def _give_up_where_nobody_comes(self) -> None:
        now = time.monotonic()
        if self._router.names or not self._router.unanswered:
            self._alone_since = now
        elif now - self._alone_since > self._options.patience or all(
            server.refused for server in self._servers
        ):
            self._router.fail_all(self._nobody())

    def _nobody(self) -> ModelError:
        found = next(
            (server.refused for server in self._servers if server.refused is not None), None
        )
        return found or ModelError(
            f"No vLLM server of {self.name!r} has come within {self._options.patience:g} s.",
            "See their logs (engines/ in the run's folder); what was recorded is kept, and the run"
            " can be resumed.",
        )

    def _wait_for_servers(self, at_least: int | None = None) -> None:
        """Wait until all servers have come, or at least `at_least` of them. After `patience`
        seconds one server is enough.

        At the start a refused server is an error, since the user asked for it and would not notice
        later.
        """
        until = time.monotonic() + self._options.patience
        with self._looked:
            while not self._closing.is_set():
                if self._failure is not None:
                    raise self._failure
                there = (
                    sum(server.engine is not None for server in self._servers)
                    if self._logprob_kind
                    else 0
                )
                refused = [server.refused for server in self._servers if server.refused is not None]
                if refused and (at_least is None or len(refused) == len(self._servers)):
                    raise refused[0]
                if there >= (at_least or len(self._servers)):
                    return
                left = until - time.monotonic()
                if left <= 0 and there:
                    return
                if left <= 0:
                    raise self._nobody()
                self._looked.wait(min(left, _LOOK_SECONDS))
