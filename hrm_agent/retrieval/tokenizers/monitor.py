"""Monitoring of how well a tokenizer suits the texts that are indexed.

A vocabulary learnt on other texts fails silently. What it lacks becomes an unknown token or is
spelled in bytes, and chunks of 512 tokens hold a fifth of the text that they should. Nothing
raises, but recall is poor. So rates are computed over all documents, and a rate above its limit
gives a warning.

    monitor = RateMonitor(load_tokenizer(name))
    for file, text in documents:
        monitor.see(file, text)              # cheap: see `most`
    for warning in monitor.warnings():       # at the end, or now and then
        print(warning)

A long document is judged by four windows spread evenly over it, so monitoring costs little beside
cutting. The rates are therefore estimates. A tokenizer without a vocabulary (`pieces`) lacks
nothing and is not checked.
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
"""Minimum tokens of a document, or of all documents, for a rate to be judged."""
_KEPT = 5
"""Number of documents above a limit that are kept, the worst ones."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Limits of the rates. A text above them is indexed all the same."""

    unknown: float = 0.01
    """Maximum share of unknown tokens. A word vocabulary has 3 % on held-out text of its own
    kind.
    """
    spelled: float = 0.1
    """Maximum share of tokens that spell bytes."""
    tokens_per_word: float = 3.0
    """Maximum tokens per word. English has 1.3 to 1.6 with a large vocabulary, a language that it
    hardly knows 3 and more.
    """


@dataclass
class RateMonitor:
    """Rates of one tokenizer over many documents. Not thread-safe. Use one monitor per thread and
    join them by `add`.
    """

    tokenizer: Tokenizer
    """Tokenizer that is judged."""
    limits: RateLimits = field(default_factory=RateLimits)
    """Limits above which a warning is given."""
    most: int = 2_048
    """Maximum characters of a document that are counted."""
    total: TokenTally = field(default_factory=TokenTally)
    """Counts over all documents seen."""
    documents: int = 0
    """Number of documents seen."""
    over: int = 0
    """Number of documents above a limit."""
    worst: list[tuple[str, TokenTally]] = field(default_factory=list[tuple[str, TokenTally]])
    """Documents above a limit as (name, tally), the worst first, at most five."""

    def see(self, name: str, text: str) -> TokenTally:
        """Count a document. `name` is used in warnings."""
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
        """Add the counts of another monitor of the same tokenizer."""
        self.total += other.total
        self.documents += other.documents
        self.over += other.over
        self._remember(other.worst)

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each overall rate above its limit, then one about the documents
        above a limit.
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
        """Largest of the rates, each as a multiple of its limit (0 if there are too few tokens)."""
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
    """Windows of a long text, spread evenly over it. A short text is yielded whole."""
    if len(text) <= most:
        yield text
        return
    size = most // _WINDOWS
    for number in range(_WINDOWS):
        start = (len(text) - size) * number // (_WINDOWS - 1)
        yield text[start : start + size]
