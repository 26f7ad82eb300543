"""Proof of one server of a fleet: compares its evidence of weights with the trainer's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from hrm_agent.training.engines.server import FleetOptions, FleetServer, Shown
from hrm_agent.training.engines.weights import (
    LogprobDifference,
    OtherWeightsError,
    Publication,
    ScoredText,
    refuse_kept_cache,
    refuse_other_weights,
    refuse_unknown,
)

__all__ = ["FleetProof"]


class FleetProof:
    """Verifies servers against publications."""

    def __init__(
        self, options: FleetOptions, score: Callable[[Sequence[int]], list[float]]
    ) -> None:
        """`score`: the trainer's log-prob of each token of a text but the first."""
        self._options, self._score = options, score
        self._said: set[str] = set()

    def scored(self, token_ids: Sequence[int]) -> ScoredText:
        """A text with the trainer's log-probs."""
        return ScoredText(tuple(token_ids), tuple(self._score(token_ids)))

    def prove(
        self, server: FleetServer, publication: Publication, shown: Shown
    ) -> tuple[Publication, LogprobDifference]:
        """Return the publication with the server's sample added, to verify others with, and the
        server's difference of log-probs.

        Raises `OtherWeightsError` if it is too large, or if weights cannot be compared and are not
        to be trusted.
        """
        texts, differences = publication.texts[:1], list[LogprobDifference]()
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
        where, version = server.url, publication.version
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
                f"The engine at {where} had the weights of version {version}, and while it was"
                " proved they changed.",
                "Let nobody else change the weights of a server while a training runs.",
            )
        server.proved = shown.watched
        return replace(publication, texts=texts), found

    def _tell(self, said: str | None) -> None:
        if said is not None and said not in self._said:
            self._said.add(said)
            sys.stderr.write(f"hrm-agent: {said}\n")
