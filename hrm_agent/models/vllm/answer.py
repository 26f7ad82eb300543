"""Requests to a vLLM server, and conversion of its answers, after checks, to a `Completion`.

The request names every parameter that changes a distribution. Otherwise the server would take it
from the model's `generation_config.json` (a top-k of 20, a repetition penalty), and the log-probs
would not be those of the sampled distribution. The answer has to contain the prompt as the server
saw it, one log-prob per token, and an end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.server import VllmAddress
from hrm_agent.trajectory import FinishReason

if TYPE_CHECKING:
    from hrm_agent.models.codec.chat_template import PolicyCodec

__all__ = ["VllmReply", "request_body"]

_NEUTRAL = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "watermarking": False,
    "n": 1,
}
_SEEDS = (1 << 63) - 1
_MOST_TOKENS = 1 << 31
"""Upper limit of token ids, above any vocabulary. Tokenizers accept no larger number."""
_ROUNDING = 1e-3
"""Maximum amount by which a log-prob may exceed 0 because of rounding."""


def request_body(
    request: GenerationRequest, model: str, codec: PolicyCodec, max_tokens: int
) -> dict[str, Any]:
    """JSON body of `/v1/completions`. The body always has a seed. Without it, a server with a seed
    of its own may use that seed for every request.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt_ids),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **_NEUTRAL,
        "stop_token_ids": sorted(codec.control_token_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
    }
    if request.name:
        body["request_id"] = request.name
    if sampling.seed is not None:
        body["seed"] = sampling.seed & _SEEDS
    if stop := [text for text in sampling.stop if text]:
        body["stop"] = stop
    if request.schema is not None:
        body["structured_outputs"] = {"json": request.schema}
    if request.on_token is not None:
        body["stream"] = True
    return body


class VllmReply:
    """Parser of an answer that arrives in pieces (an answer that is not streamed is one piece)."""

    def __init__(
        self, request: GenerationRequest, address: VllmAddress, codec: PolicyCodec, max_tokens: int
    ) -> None:
        self._request = request
        self._address = address
        self._codec = codec
        self._max_tokens = max_tokens
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._prompt_seen = False
        self._finish: str | None = None

    def take(self, piece: Mapping[str, Any]) -> None:
        """Check a piece and pass its tokens to the callback. Raises `ModelError`."""
        if "error" in piece:
            raise self._failure(f"broke off: {str(piece['error'])[:400]}")
        choices: Any = piece.get("choices")
        if not isinstance(choices, list) or len(cast("list[Any]", choices)) > 1:
            raise self._failure("sent no answer")
        for choice in cast("list[Any]", choices):
            if not isinstance(choice, dict):
                raise self._failure("sent no answer")
            self._take_choice(cast("dict[str, Any]", choice))

    def _take_choice(self, choice: dict[str, Any]) -> None:
        seen = choice.get("prompt_token_ids")
        if seen is not None:
            if seen != list(self._request.prompt_ids):
                raise self._failure("saw a prompt that differs from the prompt that was sent")
            self._prompt_seen = True
        token_ids, logprobs = self._aligned(choice)
        if token_ids and not self._prompt_seen:
            raise self._failure("does not show the prompt that it saw (prompt_token_ids)")
        if self._finish is not None and token_ids:
            raise self._failure("went on after the end of its answer")
        self._token_ids += token_ids
        self._logprobs += logprobs
        if len(self._token_ids) > self._max_tokens:
            raise self._failure(f"sent more than the {self._max_tokens} requested tokens")
        self._finish = choice.get("finish_reason") or self._finish
        if self._request.on_token is not None:
            for token in token_ids:
                self._request.on_token(token)

    def completion(self, policy_version: int, queue_seconds: float) -> Completion:
        """Completion of the whole answer. Raises `ModelError` if the server did not finish it."""
        if self._finish not in ("stop", "length") or not self._token_ids:
            raise self._failure(f"did not finish its answer (finish_reason {self._finish!r})")
        last = self._token_ids[-1]
        if last in self._codec.ends:
            reason = FinishReason.STOP
        elif last in self._codec.control_token_ids:
            reason = FinishReason.CONTROL_TOKEN
        else:
            reason = FinishReason.LENGTH if self._finish == "length" else FinishReason.STOP
        return Completion(
            tuple(self._token_ids),
            tuple(self._logprobs),
            reason,
            policy_version,
            queue_seconds,
            constrained=self._request.schema is not None,
        )

    def _aligned(self, choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        token_ids: Any = choice.get("token_ids")
        said: Any = choice.get("logprobs")
        logprobs: Any = (
            cast("dict[str, Any]", said).get("token_logprobs") if isinstance(said, dict) else None
        )
        if not token_ids and not logprobs and not choice.get("text"):
            return [], []
        if (
            not _all_of(token_ids, _is_token)
            or not _all_of(logprobs, _is_logprob)
            or len(token_ids) != len(logprobs)
        ):
            raise self._failure("sent tokens without an id or a log-prob for each")
        return cast("list[int]", token_ids), [min(float(logprob), 0.0) for logprob in logprobs]

    def _failure(self, what: str) -> ModelError:
        return ModelError(
            f"The vLLM server at {self._address.url} {what}.",
            "See its log and its version (0.11 or newer); `hrm-agent resume` continues a run that"
            " stopped.",
        )


def _all_of(values: Any, test: Any) -> bool:
    return isinstance(values, list) and all(map(test, cast("list[Any]", values)))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS


def _is_logprob(value: Any) -> bool:
    number = isinstance(value, float) or (type(value) is int and abs(value) < _MOST_TOKENS)
    return number and math.isfinite(value) and value <= _ROUNDING
