"""Whether a tokenizer suits the texts that come in, watched while they are indexed.

A vocabulary learnt on other texts fails without a word: what it lacks becomes an unknown token, or
is spelled in bytes, and chunks of 512 tokens hold a fifth of the text that they should. Nothing
raises; recall is poor. So the rates are kept over all documents, and a rate past its limit is said
in one sentence.

    monitor = RateMonitor(load_tokenizer(name))
    for file, text in documents:
        monitor.see(file, text)              # cheap: see `most`
    for warning in monitor.warnings():       # at the end, or now and then
        print(warning)

A long document is judged by four windows spread evenly over it, so that watching costs little
beside cutting. Rates are those of what was seen; they estimate, they do not account. A tokenizer
without a vocabulary (`pieces`) lacks nothing, and is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.retrieval.tokenizers.base import Tokenizer, Vocabulary
from hrm_agent.retrieval.tokenizers.statistics import TokenTally, tally

__all__ = ["RateLimits", "RateMonitor"]

_WINDOWS = 4
_ENOUGH = 200
"""Tokens of a document or of all of them, below which a rate says nothing."""
_KEPT = 5
"""Documents past a limit that are remembered, the worst ones."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What is still well. A limit that is not met is no error: the text is indexed all the same."""

    unknown: float = 0.01
    """Largest share of tokens that are the unknown one. On held-out text of its own kind a word
    vocabulary has 3 %.
    """
    spelled: float = 0.1
    """Largest share of tokens that spell bytes."""
    tokens_per_word: float = 3.0
    """English has 1.3 to 1.6 with a large vocabulary,
    a language that it hardly knows 3 and more.
    """


@dataclass
class RateMonitor:
    """Rates of one tokenizer over many documents. Not for several threads at once; `add` joins what
    each has seen.
    """

    tokenizer: Tokenizer
    """The tokenizer that is judged."""
    limits: RateLimits = field(default_factory=RateLimits)
    """Rates past which a warning is given."""
    most: int = 2_048
    """Characters of a document that are looked at."""
    total: TokenTally = field(default_factory=TokenTally)
    """Counts over all documents seen."""
    documents: int = 0
    """Number of documents seen."""
    over: int = 0
    """Documents past a limit."""
    worst: list[tuple[str, TokenTally]] = field(default_factory=list[tuple[str, TokenTally]])
    """At most five of those past a limit, the worst first: name, tally."""

    def see(self, name: str, text: str) -> TokenTally:
        """Count a document; `name` is what it is called in warnings."""
        self.documents += 1
        if not isinstance(self.tokenizer, Vocabulary):
            return TokenTally()
        seen = sum(
            (tally(self.tokenizer, replace_surrogates(part)) for part in _windows(text, self.most)),
            TokenTally(),
        )
        self.total += seen
        if self._excess(seen) > 1:
            self.over += 1
            self._remember([(name, seen)])
        return seen

    def add(self, other: RateMonitor) -> None:
        """Take over what another monitor of the same tokenizer has seen."""
        self.total += other.total
        self.documents += other.documents
        self.over += other.over
        self._remember(other.worst)

    def warnings(self) -> Iterator[str]:
        """A sentence for each rate of all documents that is past its limit, then one on the
        documents past one.
        """
        if self._excess(self.total) > 1:
            yield from self._rates()
        if self.over:
            name, _ = self.worst[0]
            which = (
                f"{name} is"
                if self.over == 1
                else f"{self.over} of {self.documents} documents, {name} above all, are"
            )
            yield f"{which} past a limit of {self.tokenizer.name}: another tokenizer may suit."

    def _rates(self) -> Iterator[str]:
        total, limits, name = self.total, self.limits, self.tokenizer.name
        if (total.unknown_rate or 0) > limits.unknown:
            yield (
                f"{total.unknown_rate:.1%} of the tokens are unknown to {name} (limit"
                f" {limits.unknown:.1%})."
            )
        if (total.byte_rate or 0) > limits.spelled:
            yield (
                f"{total.byte_rate:.1%} of the tokens of {name} spell bytes (limit"
                f" {limits.spelled:.1%})."
            )
        if (total.tokens_per_word or 0) > limits.tokens_per_word:
            yield (
                f"{name} takes {total.tokens_per_word:.1f} tokens for a word (limit"
                f" {limits.tokens_per_word:.1f})."
            )

    def _excess(self, seen: TokenTally) -> float:
        """The largest of the rates, each as a multiple of its limit; 0 where there is too little to
        judge.
        """
        if seen.tokens < _ENOUGH:
            return 0.0
        limits = self.limits
        rates = [
            (seen.unknown_rate or 0, limits.unknown),
            (seen.byte_rate or 0, limits.spelled),
            (seen.tokens_per_word or 0, limits.tokens_per_word),
        ]
        return max(rate / limit if limit else float(rate > 0) * 2 for rate, limit in rates)

    def _remember(self, found: list[tuple[str, TokenTally]]) -> None:
        self.worst = sorted([*self.worst, *found], key=lambda one: -self._excess(one[1]))[:_KEPT]


def _windows(text: str, most: int) -> Iterator[str]:
    """All of a short text; of a long one, stretches spread evenly over it."""
    if len(text) <= most:
        yield text
        return
    size = most // _WINDOWS
    for number in range(_WINDOWS):
        start = (len(text) - size) * number // (_WINDOWS - 1)
        yield text[start : start + size]
