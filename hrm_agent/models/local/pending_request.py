"""Request on its way through the in-process engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from hrm_agent.errors import ContextLengthError, ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local.constrained_decoding import ConstrainedAnswer
from hrm_agent.models.local.stop_strings import StopStrings

__all__ = ["PendingRequest", "no_distribution", "objection"]


class PendingRequest:
    """Request with its future, from submission to resolution."""

    def __init__(
        self,
        request: GenerationRequest,
        future: Future[Completion],
        max_length: int,
        begun: Sequence[int] = (),
    ) -> None:
        """`begun`: first tokens of the answer, if they are known."""
        self.request = request
        self.future = future
        self.start = len(request.prompt_ids)
        """Index of the answer's first token."""
        self.begun = len(begun)
        """Number of the answer's tokens that were known before."""
        self.prompt = np.asarray((*request.prompt_ids, *begun), np.int64)
        """Tokens to feed before one is sampled."""
        self.limit = min(self.start + request.sampling.max_tokens, max_length)
        """Maximum number of tokens of prompt and answer."""
        self.watched = request.on_token is not None or bool(request.sampling.stop)
        """True if each token has to be checked."""
        self.fed = False
        """True if the cache holds the whole prompt, which can then be copied, or if the request is
        over.
        """
        self.donor: PendingRequest | None = None
        """Request whose prompt is being fed, and from whose row this request waits to copy a prefix
        (None if it does not wait).
        """
        self.adapter = 0
        """Number of the adapter for the answer (0 for the shared adapter, or without adapters)."""
        self.held: ConstrainedAnswer | None = None
        """State of the answer's schema (None if the answer is not constrained)."""
        self.submitted_at = time.monotonic()
        self.queue_seconds = 0.0
        self._stop: StopStrings | None = None

    @property
    def waits_for_prefix(self) -> bool:
        """True if the prompt to copy from is still being fed."""
        return self.donor is not None and not self.donor.fed

    def see(self, answer: list[int], decode: Callable[[Sequence[int]], str]) -> bool:
        """Process the newest token. Returns True if the answer has reached a stop string."""
        if self.request.on_token is not None:
            self.request.on_token(answer[-1])
        if self._stop is None:
            self._stop = StopStrings(self.request.sampling.stop, decode)
        return self._stop.reached(answer)

    def complete(self, completion: Completion) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """Pass an error to the caller, unless the request is already over."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def objection(
    prompt: Sequence[int], max_length: int, vocab_size: int, model: str
) -> ModelError | None:
    """Error for an invalid prompt (None if it is valid)."""
    if not prompt:
        return ModelError("The prompt is empty.", "Send at least one message.")
    if len(prompt) >= max_length:
        return ContextLengthError(
            f"The prompt has {len(prompt)} tokens, but model {model!r} takes at most {max_length},"
            " including the answer.",
            "Shorten the conversation, or use a model with a longer context.",
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        return ModelError(
            f"The prompt holds tokens {min(prompt)} to {max(prompt)}, but model {model!r} only"
            f" knows 0 to {vocab_size - 1}.",
            "Use the tokenizer that belongs to the model.",
        )
    return None


def no_distribution(model: str) -> ModelError:
    """Error for a token whose log-prob is not a number."""
    return ModelError(
        f"The logits of {model!r} are not finite, so no token can be sampled.",
        "The weights are broken, or too large for their number format. Use an earlier checkpoint,"
        " or ?dtype=float32.",
    )
