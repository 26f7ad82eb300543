"""Codec without a tokenizer: one token per UTF-8 byte, and four more tokens for the frame of the
conversation.

It is for tests and scripted policies. No guard is needed, since text consists of bytes, and no byte
is a token of the frame. The layout is ChatML's: tools are in the system turn, tool results in a
user turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage

from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.models.codec.calls.hermes import parse_turn, tool_call_text
from hrm_agent.models.codec.messages import answer_text, message_role, message_text
from hrm_agent.models.codec.stream_decoder import StreamDecoder
from hrm_agent.models.engine import ParsedTurn

__all__ = ["ByteCodec"]

_START, _END, _RESPONSE_OPEN, _RESPONSE_CLOSE = range(256, 260)
_SPELLING = {
    _START: b"<|im_start|>",
    _END: b"<|im_end|>",
    _RESPONSE_OPEN: b"<tool_response>",
    _RESPONSE_CLOSE: b"</tool_response>",
}


class ByteCodec:
    """Conversion of messages to bytes and back."""

    end_of_turn = _END
    """Token that ends a turn."""
    ends = frozenset((_END,))
    """Set of the tokens that end an answer."""
    without_thoughts = ()
    """Tokens that open an answer without thoughts (none, since this codec has no thoughts)."""
    control_token_ids = frozenset((_START, _END))
    """Tokens of the frame that a policy might forge."""
    vocab_size = 260
    """Number of tokens: 256 bytes and the tokens of the frame."""

    def encode(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the whole prompt, up to and including the header of the answer."""
        offered = (
            [_START, *_bytes(f"system\n{json.dumps(list(tools))}"), _END, *_bytes("\n")]
            if tools
            else []
        )
        return [*offered, *(i for message in messages for i in _turn(message)), *_header()]

    def extend(
        self,
        messages: Sequence[BaseMessage],
        answered: int,
        *,
        ended_by: int | None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """Tokens to insert after the sampled tokens of `messages[answered]`. Earlier turns are
        never rewritten.
        """
        del tools
        following = (i for message in messages[answered + 1 :] for i in _turn(message))
        return [*([_END] if ended_by is None else []), *_bytes("\n"), *following, *_header()]

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a written answer, with its end of turn."""
        return [*_bytes(text), _END]

    def encode_turn(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the last message, which is an answer, with its end of turn."""
        del tools
        return self.encode_answer(_answer(cast("AIMessage", messages[-1])))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, without the control token that ended the turn."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.control_token_ids else token_ids
        return b"".join(_SPELLING.get(i) or bytes((i,)) for i in ids).decode(errors="replace")

    def parse(
        self, text: str, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True
    ) -> ParsedTurn:
        """Content and tool calls of an answer's text."""
        del tools, thinks
        return parse_turn(text)

    def thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of sampled tokens that hold thoughts: always 0, since `parse` separates none."""
        del token_ids
        return 0

    def stream(self, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True) -> StreamDecoder:
        """Decoder for one answer that is being sampled."""
        del tools, thinks
        return StreamDecoder(self.decode)


def _turn(message: BaseMessage) -> list[int]:
    role = message_role(message)
    if role == "tool":
        body = [*_bytes("user\n"), _RESPONSE_OPEN, *_bytes(message_text(message)), _RESPONSE_CLOSE]
    else:
        text = _answer(message) if isinstance(message, AIMessage) else message_text(message)
        body = _bytes(f"{role}\n{text}")
    return [_START, *body, _END, *_bytes("\n")]


def _answer(message: AIMessage) -> str:
    return answer_text(message) + "".join(
        tool_call_text(call["name"], call["args"]) for call in message.tool_calls
    )


def _header() -> list[int]:
    return [_START, *_bytes("assistant\n")]


def _bytes(text: str) -> list[int]:
    return list(without_surrogates(text).encode())
