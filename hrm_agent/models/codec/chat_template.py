"""A codec over a Hugging Face tokenizer and its chat template.

Three rules, each of which a peer breaks:

* *Token in, token out.* After an answer the prompt is never rendered again from text: `extend` encodes only what the
  template puts after the answer's turn, and the sampled tokens stay as they were sampled. Where the template does not
  leave the earlier turns alone (it strips the reasoning of past turns, say), `TemplateMismatch` says so.
* *Text is text.* Spellings of added tokens inside a message are encoded as plain text
  (`hrm_agent.models.codec.control_tokens`). In the policy's own turns only control tokens are guarded: its tags are
  tags.
* *A turn ends with a control token.* The token is found by rendering an answer and looking at what follows it, since
  the tokenizer's `eos_token` is not always the one that the template writes.

Encoding is cut into turns, and the ids of a turn are cached: in a rollout the same system turn is encoded for every
sample. Limits: byte-level and other tokenizers of the `tokenizers` library only; added tokens made of white space are
not guarded (they are part of ordinary text in some vocabularies).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from jinja2.exceptions import TemplateError
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from tokenizers import Tokenizer
from transformers.utils import chat_template_utils

from hrm_agent.bounded import BoundedMap
from hrm_agent.errors import ModelError, TemplateRefusalError
from hrm_agent.models.codec.control_tokens import ControlTokenGuard
from hrm_agent.models.codec.messages import answer_text, message_role, message_text
from hrm_agent.models.codec.stream_decoder import StreamDecoder
from hrm_agent.models.codec.tool_calls import parse_turn
from hrm_agent.models.engine import Codec, ParsedTurn, TemplateMismatch

__all__ = ["ChatTemplateCodec", "PolicyCodec", "StreamDecoder"]

_templates: Any = chat_template_utils
_PROBE = "ANSWER"
_REMEMBERED = 4096
_REMEMBERED_CHARACTERS = 32 << 20
"""Of rendered conversations, with what they were rendered from."""


class PolicyCodec(Codec, Protocol):
    """A codec that says which tokens must not be sampled inside a turn."""

    control_token_ids: frozenset[int]
    """Tokens that end an answer wherever they are sampled, `end_of_turn` included."""


class ChatTemplateCodec:
    """Messages to token ids and back, by the chat template of a tokenizer."""

    end_of_turn: int
    """Id of the token that the template writes after an answer."""
    control_token_ids: frozenset[int]
    """Ids of all special tokens, the end of the turn among them."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a `transformers` tokenizer with a chat template, backed by the `tokenizers` library."""
        self.tokenizer = tokenizer
        self._encoder = _backend(tokenizer)
        self._rendered = BoundedMap[str, tuple[str, str]](_REMEMBERED, _weight, _REMEMBERED_CHARACTERS)
        self._offered = BoundedMap[str, list[Any]](_REMEMBERED // 64)
        self._lock = threading.Lock()
        self._plain_encoder = _without_added_tokens(self._encoder)
        self._variables: dict[str, Any] = dict(tokenizer.special_tokens_map)
        added = self._encoder.get_added_tokens_decoder()
        self._added_ids = frozenset(i for i, token in added.items() if token.content.strip())
        self.control_token_ids = frozenset(i for i, token in added.items() if token.special) | frozenset(
            cast("list[int]", tokenizer.all_special_ids)
        )
        self._guard, self._tags, self._controls = self._make_guard()
        self.end_of_turn, self._end_text = self._find_end_of_turn()
        end = added.get(self.end_of_turn)
        self._separable = end is not None and not end.lstrip
        self._turn_ids = lru_cache(maxsize=4096)(self._encode_turn)
        self._plain_ids = lru_cache(maxsize=1024)(self._encode_plainly)

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process the tokenizer says all."""
        return type(self), (self.tokenizer,)

    def encode(self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """The whole prompt, up to and with the header of the answer."""
        return self._ids(self._render(self._dicts(messages), self._guarded_tools(tools)))

    def extend(
        self, messages: Sequence[BaseMessage], answered: int, *, ended: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """The tokens to insert after the sampled tokens of `messages[answered]`; see `Codec.extend`."""
        dicts, guarded_tools = self._dicts(messages), self._guarded_tools(tools)
        seen = self._render(dicts[:answered], guarded_tools)
        full = self._render(dicts, guarded_tools)
        rest = full[self._end_of_answer(seen, full, str(dicts[answered]["content"])) :]
        inserted = self._ids(self._end_text + rest)
        if not inserted or inserted[0] != self.end_of_turn:
            raise TemplateMismatch("the tokenizer does not keep the end of the turn apart from what follows")
        return inserted[1:] if ended else inserted

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a written answer: its tags become tags, control tokens stay text; with the end of the turn."""
        return [*self._ids(self._guard.text(text, self._controls)), self.end_of_turn]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, tags included, without the control token that ended the turn."""
        ids = list(token_ids)
        if ids and ids[-1] in self.control_token_ids:
            ids.pop()
        return self._encoder.decode(ids, skip_special_tokens=False)

    def parse(self, text: str) -> ParsedTurn:
        """Content and tool calls of an answer's text."""
        return parse_turn(text)

    def stream(self) -> StreamDecoder:
        """A decoder for one answer that is being sampled."""
        return StreamDecoder(self.decode)

    def _end_of_answer(self, seen: str, full: str, content: str) -> int:
        """Position in `full` after the end of the answered turn, if `full` continues what the policy saw and wrote."""
        if not full.startswith(seen):
            raise TemplateMismatch("the chat template renders the turns before the answer differently")
        end = full.find(self._end_text, len(seen))
        if end < 0:
            raise TemplateMismatch("the chat template does not write the end of the answered turn")
        if _squeezed(content) not in _squeezed(full[len(seen) : end]):
            raise TemplateMismatch("the chat template does not keep the text of the answered turn")
        return end + len(self._end_text)

    def _ids(self, rendered: str) -> list[int]:
        if not self._separable:
            return list(self._encode_turn(rendered))
        first, *others = rendered.split(self._end_text)
        ids = list(self._turn_ids(first))
        for turn in others:
            ids.extend(self._turn_ids(self._end_text + turn))
        return ids

    def _encode_turn(self, rendered: str) -> tuple[int, ...]:
        ids: list[int] = []
        for text, guarded in self._guard.split(rendered):
            ids.extend(self._plain_ids(text) if guarded else self._encoder.encode(text, add_special_tokens=False).ids)
        return tuple(ids)

    def _encode_plainly(self, text: str) -> tuple[int, ...]:
        """Ids of a guarded spelling; character by character where the vocabulary itself holds the spelling."""
        ids = self._plain_encoder.encode(text, add_special_tokens=False).ids
        if self._added_ids.isdisjoint(ids):
            return tuple(ids)
        spelled = [i for char in text for i in self._plain_encoder.encode(char, add_special_tokens=False).ids]
        return tuple(i for i in spelled if i not in self._added_ids)

    def _render(self, dicts: list[dict[str, Any]], tools: list[Any] | None, *, header: bool = True) -> str:
        """The conversation as text. What was rendered lately is remembered: the siblings of a group begin alike, and a
        turn needs the text of the turn before. A template that reads a clock is rendered each time.
        """
        template = self._template(tools)
        if "strftime_now" in template:
            return self._render_afresh(template, dicts, tools, header)
        key = repr((header, dicts, tools))
        with self._lock:
            known = self._rendered.get(key)
        if known is not None and known[0] == template:
            return known[1]
        rendered = self._render_afresh(template, dicts, tools, header)
        with self._lock:
            self._rendered[key] = (template, rendered)
        return rendered

    def _render_afresh(self, template: str, dicts: list[dict[str, Any]], tools: list[Any] | None, header: bool) -> str:
        try:
            rendered, _ = _templates.render_jinja_template(
                [dicts], tools=tools, chat_template=template, add_generation_prompt=header, **self._variables
            )
        except MemoryError:
            raise
        except Exception as error:  # a template is a program: what it does with an argument may raise anything
            said = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise TemplateRefusalError(
                f"The chat template of {self._named} refuses the conversation: {said.rstrip('.')}.",
                "What it takes, the template says: the order of roles, how many calls an answer may have, and such.",
            ) from error
        return rendered[0]

    @property
    def _named(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "") or "the model")

    def _template(self, tools: list[Any] | None) -> str:
        template = self.tokenizer.chat_template
        if isinstance(template, str):
            return template
        return cast("str", self.tokenizer.get_chat_template(None, tools))

    def _dicts(self, messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        return [self._dict(message) for message in messages]

    def _dict(self, message: BaseMessage) -> dict[str, Any]:
        if isinstance(message, AIMessage):
            return self._assistant(message)
        fields = {"role": message_role(message), "content": message_text(message)}
        if isinstance(message, ToolMessage):
            fields |= {"tool_call_id": message.tool_call_id, "name": message.name or ""}
        return self._guard.tree(fields, self._tags)

    def _assistant(self, message: AIMessage) -> dict[str, Any]:
        guarded: dict[str, Any] = {
            "role": "assistant",
            "content": self._guard.text(answer_text(message), self._controls),
        }
        if message.tool_calls:
            guarded["tool_calls"] = [
                self._guard.tree(
                    {
                        "type": "function",
                        "id": call["id"],
                        "function": {"name": call["name"], "arguments": call["args"]},
                    },
                    self._tags,
                )
                for call in message.tool_calls
            ]
        return guarded

    def _guarded_tools(self, tools: Sequence[dict[str, Any]]) -> list[Any] | None:
        if not tools:
            return None
        key = repr(tools)
        with self._lock:
            guarded = self._offered.get(key)
        if guarded is None:
            guarded = self._guard.tree(list(tools), self._tags)
            with self._lock:
                self._offered[key] = guarded
        return guarded

    def _make_guard(self) -> tuple[ControlTokenGuard, Any, Any]:
        added = self._encoder.get_added_tokens_decoder()
        spellings = {i: token.content for i, token in added.items() if i in self._added_ids}
        normalizer = self._encoder.normalizer
        guard = ControlTokenGuard(spellings.values(), normalizer.normalize_str if normalizer is not None else None)
        controls = [spelling for i, spelling in spellings.items() if i in self.control_token_ids]
        return guard, guard.pattern(spellings.values()), guard.pattern(controls)

    def _find_end_of_turn(self) -> tuple[int, str]:
        turns = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": _PROBE}]
        after = self._render(turns, None, header=False).rpartition(_PROBE)[2]
        for token_id in self._encoder.encode(after, add_special_tokens=False).ids:
            if token_id in self.control_token_ids:
                return token_id, self._encoder.id_to_token(token_id) or ""
        raise ModelError(
            "The chat template writes no control token after an answer, so its turns have no end.",
            "Use a chat template that closes turns with a special token, as ChatML does with <|im_end|>.",
        )


def _backend(tokenizer: Any) -> Tokenizer:
    """An own copy of the tokenizer's engine, so that no caller's truncation or padding reaches it."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"The tokenizer {tokenizer.name_or_path!r} has no chat template, so it cannot encode a conversation.",
            "Use an instruction-tuned model, or set `tokenizer.chat_template`.",
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"The tokenizer {tokenizer.name_or_path!r} is not backed by the `tokenizers` library.",
            "Use a model with a tokenizer.json.",
        )
    copy: Tokenizer = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = False
    return copy


def _without_added_tokens(encoder: Tokenizer) -> Tokenizer:
    described = json.loads(encoder.to_str())
    described["added_tokens"] = []
    described["post_processor"] = None
    return Tokenizer.from_str(json.dumps(described))


def _weight(rendered: tuple[str, str]) -> int:
    """About twice its text: the key is as long again."""
    return 2 * len(rendered[1])


def _squeezed(text: str) -> str:
    """Without white space: templates trim and re-indent, which is no rewriting."""
    return "".join(text.split())
