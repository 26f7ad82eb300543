"""Answers held to a JSON schema while they are sampled.

llguidance keeps one automaton an answer and says which tokens may come next. Of the libraries that
do this it is the one that needs nothing but a tokenizer (xgrammar brings triton and a compiler of
its own, outlines-core wants the whole automaton before the first token, lm-format-enforcer walks
the vocabulary in Python), builds its automaton as the answer goes on, and has limits of its own for
each step. A schema is compiled once per engine, in a thread that holds no lock of Python's, and for
so long only: a schema that takes longer, that is larger than a person would write, or that the
library does not know, is not enforced, and the answer says so (`Completion.constrained`).

What is chosen under a mask is not what the model would have chosen. The log-prob on record stays
the model's own, of the whole vocabulary, and the call is marked, so that no trainer takes it for a
sample of the policy.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from importlib.util import find_spec
from typing import Any

import numpy as np

from hrm_agent.models.capabilities import Lack

__all__ = ["ConstrainedAnswer", "Schemas"]

COMPILE_SECONDS = 5.0
"""Time for one schema once the vocabulary is read. After it an answer is sampled free; later ones may be held to it."""
_LONGEST = 1 << 16
"""Characters of a schema. The time to compile one can grow with the square of it."""
_KEPT = 256
"""Schemas of an engine; a graph has a handful."""
_SPACE = r"( |\n {0,16})"
"""Between the parts of a JSON text: without an end, a model that has lost its way writes nothing
else.
"""

Array = np.ndarray[Any, Any]


class ConstrainedAnswer:
    """One answer on its way through its schema."""

    def __init__(self, matcher: Any, size: int, end_of_turn: int) -> None:
        self._matcher = matcher
        self._words = np.zeros((size + 31) // 32, np.int32)
        self._size = size
        self._end_of_turn = end_of_turn

    def allowed(self) -> Array:
        """[vocabulary] True where a token may come next; the end of the turn where the text is
        complete.

        Everything, where the automaton has grown beyond its limits: whoever reads the answer parses
        it all the same.
        """
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
            allowed_V = np.unpackbits(self._words.view(np.uint8), bitorder="little")[
                : self._size
            ].astype(bool)
            if allowed_V.any():
                return allowed_V
        return np.ones(self._size, bool)

    def take(self, token: int) -> None:
        """Go on by a token that was allowed."""
        if token != self._end_of_turn and not self._matcher.is_error():
            self._matcher.consume_token(token)


class Schemas:
    """The schemas that an engine was asked for, compiled for its vocabulary. Thread-safe."""

    def __init__(self, codec: Any, vocab_size: int) -> None:
        self._codec, self._size = codec, vocab_size
        self._vocabulary: Future[Any] | None = None
        self._compiled: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    @property
    def lack(self) -> Lack | None:
        """What is missing for answers to be held to a schema; None if nothing is."""
        if find_spec("llguidance") is None:
            return Lack("structured output", "Run `pip install 'llguidance>=1.9'`.")
        if not hasattr(getattr(self._codec, "tokenizer", None), "backend_tokenizer"):
            return Lack("structured output", "Use a model whose tokenizer has a tokenizer.json.")
        return None

    def compile(self, schema: Mapping[str, Any]) -> Future[Any]:
        """What answers to `schema` begin from; its result is None where the schema cannot be
        enforced.
        """
        # unsorted: answers follow the order of its properties
        text = json.dumps(schema, default=str)
        with self._lock:
            known = self._compiled.get(text)
            if known is None:
                if len(self._compiled) >= _KEPT:
                    self._compiled.pop(next(iter(self._compiled)))
                known = self._compiled[text] = self._begun(text)
            return known

    def wait(self, compiled: Future[Any]) -> None:
        """Wait until the vocabulary has been read, and for `COMPILE_SECONDS` more until a schema is compiled."""
        if self._vocabulary is not None:
            wait([self._vocabulary])
            wait([compiled], COMPILE_SECONDS)

    def begin(self, compiled: Future[Any]) -> ConstrainedAnswer | None:
        """An answer that is held to a compiled schema; None if it was not compiled,
        or not in time.
        """
        matcher = compiled.result() if compiled.done() else None
        return (
            None
            if matcher is None
            else ConstrainedAnswer(matcher.deep_copy(), self._size, self._codec.end_of_turn)
        )

    def _compile(self, text: str, compiled: Future[Any]) -> None:
        try:
            compiled.set_result(self._matcher(text))
        # whatever the library says of a schema that it does not know; a panic is no Exception
        except BaseException:
            compiled.set_result(None)

    def _read_vocabulary(self) -> Any:
        from llguidance import LLTokenizer
        from llguidance.hf import from_tokenizer

        with self._building:
            if self._tokens is None:
                self._tokens = from_tokenizer(
                    self._codec.tokenizer,
                    self._size,
                    self._codec.end_of_turn,
                    LLTokenizer.json_slices(),
                )
        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _SPACE})
        matcher = LLMatcher(
            self._tokens, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False)
        )
        return None if matcher.is_error() else matcher


def _in_thread(compute: Callable[[], Any]) -> Future[Any]:
    """Start a computation; its result is None if the library raises."""
    future: Future[Any] = Future()

    def settle() -> None:
        try:
            future.set_result(compute())
        except BaseException:  # whatever the library says of a schema that it does not know; a panic is no Exception
            future.set_result(None)

    threading.Thread(target=settle, daemon=True).start()
    return future
