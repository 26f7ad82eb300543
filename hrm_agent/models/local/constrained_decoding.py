"""Constrained decoding: answers that follow a JSON schema while they are sampled.

llguidance keeps one automaton per answer, which gives the allowed next tokens. It was chosen since
it needs no more than a tokenizer, builds its automaton during the answer, and limits the work of
each step. The alternatives fall short: xgrammar requires triton and a compiler, outlines-core needs
the whole automaton before the first token, and lm-format-enforcer walks the vocabulary in Python. A
schema is compiled once per engine, in a thread that does not hold the GIL, within a time limit. A
schema that takes longer, that is unusually large, or that the library does not support, is not
enforced, and the answer records that (`Completion.constrained`). The vocabulary is read before the
first schema, without a time limit, since it belongs to the engine and its size is known.

Tokens sampled under a mask are not samples of the model. The recorded log-prob is that of the model
without a mask, over the whole vocabulary. The call is marked, so that no trainer uses it as a
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
"""Maximum seconds to compile a schema, counted after the vocabulary is read. After this time, the
answer is sampled without the schema. Once compiled, the schema may serve later answers.
"""
_LONGEST = 1 << 16
"""Maximum number of characters of a schema, since compile time can grow with the square of it."""
_KEPT = 256
"""Maximum number of schemas of an engine. A graph has only a few."""
_SPACE = r"( |\n {0,16})"
"""White space between the parts of a JSON text. Its length is limited, since a model might write
white space without end.
"""

Array = np.ndarray[Any, Any]


class ConstrainedAnswer:
    """State of one answer that follows a schema."""

    def __init__(self, matcher: Any, size: int, end_of_turn: int) -> None:
        self._matcher = matcher
        self._words = np.zeros((size + 31) // 32, np.int32)
        self._size = size
        self._end_of_turn = end_of_turn

    def allowed(self) -> Array:
        """[vocabulary] True for allowed next tokens, including the end of the turn if the text is
        complete.

        All tokens are allowed if the automaton has grown beyond its limits. Readers parse the
        answer in any case.
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
        """Advance by a token that was allowed."""
        if token != self._end_of_turn and not self._matcher.is_error():
            self._matcher.consume_token(token)


class Schemas:
    """Schemas requested from an engine, compiled for its vocabulary. Thread-safe."""

    def __init__(self, codec: Any, vocab_size: int) -> None:
        self._codec = codec
        self._size = vocab_size
        self._vocabulary: Future[Any] | None = None
        self._compiled: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    @property
    def lack(self) -> Lack | None:
        """Missing part for constrained answers (None if nothing is missing)."""
        if find_spec("llguidance") is None:
            return Lack("structured output", "Run `pip install 'llguidance>=1.9'`.")
        if not hasattr(getattr(self._codec, "tokenizer", None), "backend_tokenizer"):
            return Lack("structured output", "Use a model whose tokenizer has a tokenizer.json.")
        return None

    def compile(self, schema: Mapping[str, Any]) -> Future[Any]:
        """Future of the start state for answers that follow `schema`. Its result is None if the
        schema cannot be enforced.
        """
        # keys are not sorted, since answers follow the order of properties
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
        """Answer constrained to a compiled schema (None if it was not compiled, or not in time)."""
        matcher = compiled.result() if compiled.done() else None
        return (
            None
            if matcher is None
            else ConstrainedAnswer(matcher.deep_copy(), self._size, self._codec.end_of_turn)
        )

    def _begun(self, text: str) -> Future[Any]:
        if len(text) > _LONGEST or self.lack is not None:
            refused: Future[Any] = Future()
            refused.set_result(None)
            return refused
        if self._vocabulary is None:
            self._vocabulary = _in_thread(self._read_vocabulary)
        vocabulary = self._vocabulary
        return _in_thread(lambda: self._matcher(vocabulary.result(), text))

    def _read_vocabulary(self) -> Any:
        from llguidance import LLTokenizer
        from llguidance.hf import from_tokenizer

        return from_tokenizer(
            self._codec.tokenizer, self._size, self._codec.end_of_turn, LLTokenizer.json_slices()
        )

    def _matcher(self, vocabulary: Any, text: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _SPACE})
        matcher = LLMatcher(
            vocabulary, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False)
        )
        return None if matcher.is_error() else matcher


def _in_thread(compute: Callable[[], Any]) -> Future[Any]:
    """Start a computation in a thread. The future's result is None if the library raises."""
    future: Future[Any] = Future()

    def settle() -> None:
        try:
            future.set_result(compute())
        # the library may raise anything for an unknown schema; a panic is not an Exception
        except BaseException:
            future.set_result(None)

    threading.Thread(target=settle, daemon=True).start()
    return future
