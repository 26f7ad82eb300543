"""Codec over a Hugging Face tokenizer and its chat template.

It follows three rules. Each of them is broken by some other implementation:

* *Token in, token out.* After an answer the prompt is never rendered again from text: `extend`
  encodes only what the template puts after the answer's turn, and the sampled tokens are unchanged.
  If the template changes earlier turns (it may strip their reasoning), `TemplateMismatch` is
  raised.
* *Text is text.* Spellings of added tokens inside a message are encoded as plain text
  (`hrm_agent.models.codec.control_tokens`). In the policy's own turns, only control tokens and the
  marks around thoughts are guarded. Other added tokens stay tokens.
* *A turn ends as the template has it.* The token that ends a turn is found by rendering answers and
  reading what follows them (`hrm_agent.models.codec.dialect`), since the template does not always
  write the tokenizer's `eos_token`.

Turns are encoded separately, and their ids are cached, since all rollouts of a task begin with the
same system turn. Limits: only tokenizers of the `tokenizers` library are supported. Added tokens
made of white space are not guarded, since they are part of ordinary text in some vocabularies.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol, cast

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from transformers.utils import chat_template_utils

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.basics.unicode import without_surrogates
from hrm_agent.errors import ModelError, TemplateRefusalError
from hrm_agent.models.capabilities import Speech
from hrm_agent.models.codec.arrangement import Arranging, Guards, thoughts_and_content
from hrm_agent.models.codec.calls.form import schemas_of
from hrm_agent.models.codec.control_tokens import ControlTokenGuard
from hrm_agent.models.codec.dialect import Dialect, Ending, discover
from hrm_agent.models.codec.encoders import own_encoder, plain_encoder
from hrm_agent.models.codec.messages import invalid_tool_calls
from hrm_agent.models.codec.stream_decoder import Hidden, PieceDecoder, StreamDecoder
from hrm_agent.models.codec.thoughts import reasoning_of
from hrm_agent.models.engine import Codec, ParsedTurn, TemplateMismatch

__all__ = ["KEEPING", "ChatTemplateCodec", "PolicyCodec", "StreamDecoder", "no_template"]

_templates: Any = chat_template_utils
_REMEMBERED = 4096
"""Maximum number of conversations whose rendering is cached."""
_REMEMBERED_CHARACTERS = 32 << 20
"""Maximum number of characters of the cached conversations, as messages and rendered."""
KEEPING = {"preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False}
"""Variables that make templates keep the thoughts of earlier turns."""
_STAND_IN = "ANSWER\U0010fffd"
"""Placeholder for an answer's words while the text after them is searched."""
_WAITING = 8
"""Maximum number of tokens that are held back until the rest of a character arrives."""


class PolicyCodec(Codec, Protocol):
    """Codec with a set of tokens that must not be sampled inside a turn."""

    control_token_ids: frozenset[int]
    """Tokens that end an answer wherever they are sampled, including `ends`."""


class ChatTemplateCodec:
    """Conversion of messages to token ids and back, by the chat template of a tokenizer."""

    end_of_turn: int
    """Id of the token that the template writes after an answer."""
    ends: frozenset[int]
    """Ids of all tokens that end an answer."""
    without_thoughts: tuple[int, ...]
    """Ids after the prompt for an answer without thoughts. They close the thoughts that the prompt
    opens, or open the channel of words.
    """
    control_token_ids: frozenset[int]
    """Ids of the special tokens, except those inside answers: marks of calls and thoughts."""
    dialect: Dialect
    """Conversation format of the template."""
    speech: Speech | None = None
    """Result of a test of the codec (None if it was not tested)."""
    written_by: str = "its template"
    """Phrase in error messages for the program that writes the conversations."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        tools: str | None = None,
        keep_thoughts: bool = False,
        ends: Iterable[int] = (),
    ) -> None:
        """`tokenizer`: a `transformers` tokenizer with a chat template, backed by the `tokenizers`
        library.

        `tools`: name of the form of calls (None: detected). `keep_thoughts`: keep thoughts of
        earlier turns that the template would drop. `ends`: further tokens that end an answer, from
        the model's configuration.
        """
        self.tokenizer = tokenizer
        self.keep_thoughts = keep_thoughts
        self._asked = tools, keep_thoughts, tuple(ends)
        self._encoder = own_encoder(tokenizer)
        self._plain_encoder = plain_encoder(self._encoder)
        self._rendered = BoundedMap[str, tuple[str, str]](
            _REMEMBERED, _weight, _REMEMBERED_CHARACTERS
        )
        self._offered = BoundedMap[str, list[Any]](_REMEMBERED // 64)
        self._lock = threading.Lock()
        self._variables: dict[str, Any] = dict(tokenizer.special_tokens_map) | (
            KEEPING if keep_thoughts else {}
        )
        added = self._encoder.get_added_tokens_decoder()
        self._added_ids = frozenset(i for i, token in added.items() if token.content.strip())
        special = frozenset(i for i, token in added.items() if token.special) | frozenset(
            cast("list[int]", tokenizer.all_special_ids)
        )
        spellings = {i: added[i].content for i in self._added_ids}
        controls = [spellings[i] for i in special if i in spellings]
        self.dialect = self._discovered(controls, tools)
        self._name_tokens(special, spellings, self._asked[2])
        self._set_guard(spellings, controls)
        end = added.get(self.end_of_turn)
        self._separable = end is not None and not end.lstrip
        self._turn_ids = lru_cache(maxsize=4096)(self._encode_turn)
        self._plain_ids = lru_cache(maxsize=1024)(self._encode_plainly)
        self.without_thoughts = tuple(self.encode_text(self._before_words()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tokenizer, the given options and the result of the test, from which another
        process builds the codec again.
        """
        return _rebuilt, (type(self), self.tokenizer, *self._asked), {"speech": self.speech}

    def encode(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the whole prompt, up to and including the header of the answer."""
        return self._ids(self._arranged(self._turns(messages), self._guarded_tools(tools)))

    def extend(
        self,
        messages: Sequence[BaseMessage],
        answered: int,
        *,
        ended_by: int | None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> list[int]:
        """Tokens to insert after the sampled tokens of `messages[answered]`, see `Codec.extend`."""
        turns = self._turns(messages)
        offered = self._guarded_tools(tools)
        answer = cast("AIMessage", messages[answered])
        try:
            rest = self._what_follows(turns, answered, offered, answer)
        except TemplateMismatch:
            if not self._keeps(answer, turns[answered], messages[answered + 1 :]):
                raise
            rest = self._what_follows_without_thoughts(turns, answered, offered)
        inserted = self._ids(rest)
        if not inserted or inserted[0] not in self._special:
            raise TemplateMismatch(
                "the tokenizer does not keep the end of the turn apart from what follows"
            )
        closed = ended_by is not None and (inserted[0] == ended_by or inserted[0] in self._closing)
        return inserted[1:] if closed else inserted

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer as the model writes it, with the end of the turn. Added tokens in
        it stay tokens, except those that would end a turn, which become plain text.
        """
        called = self.dialect.call != self.dialect.answer and bool(
            self._read_calls(text, self._any_tool)
        )
        end = self._ids_of[self.dialect.call.text] if called else self.end_of_turn
        return [*self._ids(self._guard.text(text, self._ends_pattern)), end]

    def encode_turn(
        self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Token ids of the last message as the template writes it, with its end, see
        `Codec.encode_turn`.
        """
        turns = self._turns(messages)
        offered = self._guarded_tools(tools)
        message = cast("AIMessage", messages[-1])
        ending = self._ending(turns[-1])
        seen = self._arranged(turns[:-1], offered)
        own = self._arranged(turns, offered, header=False)
        end = ending.place(own, len(seen))
        ids: list[int] = []
        words = bool(self.dialect.form.words) or not message.tool_calls
        if (
            own.startswith(seen)
            and end >= len(seen)
            and self._holds(own[len(seen) : end], message, words=words)
        ):
            ids = self._ids(own[len(seen) : end])
        # the text there is not the answer alone
        if not ids or not self.control_token_ids.isdisjoint(ids):
            ids = self._ids(self._written(message))
        return [*ids, self._ids_of[ending.text]]

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text that belongs to no turn."""
        return self._encoder.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled tokens, tags included, without the control token that ended the turn."""
        return self._encoder.decode(self._unended(token_ids), skip_special_tokens=False)

    def _unended(self, token_ids: Sequence[int]) -> list[int]:
        ids = list(token_ids)
        if ids and ids[-1] in self.control_token_ids:
            ids.pop()
        return ids

    def parse(
        self, text: str, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True
    ) -> ParsedTurn:
        """Content, thoughts and tool calls of an answer's text, see `Codec.parse`."""
        form = self.dialect.form
        thoughts = self.dialect.thoughts
        if form.header:
            return form.read(text if thinks else form.shown_after[0] + text, schemas_of(tools))
        reasoning, rest = thoughts.split(text) if thoughts is not None and thinks else (None, text)
        if form.opening and not tools:
            return ParsedTurn(rest, reasoning=reasoning)
        return replace(form.read(rest, schemas_of(tools)), reasoning=reasoning)

    def thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of sampled tokens that hold thoughts, see `Codec.thought_tokens`."""
        text = self.decode(token_ids)
        form = self.dialect.form
        thoughts = self.dialect.thoughts
        if form.thought_spans is not None:
            spans = form.thought_spans(text)
        else:
            spans = [(0, thoughts.end(text))] if thoughts is not None else []
        pieces = PieceDecoder(self.decode, _WAITING)
        ends = list(accumulate(len(pieces.push(token)) for token in self._unended(token_ids)))

        def tokens_of(end: int) -> int:
            """Number of tokens that hold the first `end` characters of the text. A token that is
            cut by this limit counts as a whole.
            """
            if end in (0, len(text)):
                return len(ends) if end else 0
            return bisect_left(ends, end) + 1

        return sum(tokens_of(end) - tokens_of(start) for start, end in spans)

    def stream(self, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True) -> StreamDecoder:
        """Decoder for one answer that is being sampled, see `Codec.stream`."""
        hidden = self._hidden if tools else replace(self._hidden, opening=())
        if not thinks:
            hidden = replace(hidden, thoughts=None, opened=False, header="", shown_after=())
        return StreamDecoder(self.decode, hidden)

    # discovered facts, as tokens

    def _discovered(self, controls: Sequence[str], tools: str | None) -> Dialect:
        """Conversation format of the template. Raises `ModelError` if none is found."""
        return discover(self._render, controls, self._source(), tools)

    def _name_tokens(
        self, special: frozenset[int], spellings: dict[int, str], ends: Iterable[int]
    ) -> None:
        dialect = self.dialect
        thoughts = dialect.thoughts
        frame = f"{thoughts.open}{thoughts.close}" if thoughts is not None else ""
        inside = {
            i
            for i in special
            if (s := spellings.get(i)) is not None and (s in dialect.form.inside or s in frame)
        }
        self._ids_of = {spelling: i for i, spelling in spellings.items()}
        self.end_of_turn = self._ids_of[dialect.answer.text]
        own = {self.end_of_turn, self._ids_of[dialect.call.text]}
        eos = self.tokenizer.eos_token_id
        others = {
            *ends,
            *([eos] if eos is not None else []),
            *(self._ids_of.get(text, -1) for text in dialect.form.ends),
        }
        self.ends = frozenset(own | {token for token in others - inside if token >= 0})
        self.control_token_ids = (special - inside) | self.ends
        closing = [end.text for end in (dialect.answer, dialect.call) if not end.next_role]
        later = [] if dialect.answer.next_role else [dialect.answer.later]
        self._closing = frozenset(self._ids_of[text] for text in (*closing, *later) if text)
        self._special = special
        self._end_text = dialect.answer.text
        opened = thoughts is not None and thoughts.opened
        form = dialect.form
        pair = (thoughts.open, thoughts.close) if thoughts is not None and not form.header else None
        self._hidden = Hidden(
            form.marks,
            form.opening,
            pair,
            opened and not form.header,
            form.header,
            form.shown_after,
        )

    def _set_guard(self, spellings: dict[int, str], controls: Sequence[str]) -> None:
        normalizer = self._encoder.normalizer
        thoughts = self.dialect.thoughts
        frame = [] if thoughts is None else [thoughts.open, thoughts.close]
        self._guard = ControlTokenGuard(
            {*spellings.values(), *frame},
            normalizer.normalize_str if normalizer is not None else None,
        )
        self._tags = self._guard.pattern({*spellings.values(), *frame})
        own = self._guard.pattern({*controls, *frame})
        ending = {spellings[i] for i in self.control_token_ids if i in spellings}
        self._ends_pattern: re.Pattern[str] = self._guard.pattern(ending)
        guards = Guards(
            lambda text: self._guard.text(text, self._tags),
            lambda text: self._guard.text(text, own),
            lambda value: self._guard.tree(value, self._tags),
        )
        self._arranging = Arranging(self.dialect, guards)

    # text after an answer

    def _what_follows(
        self, turns: list[Any], answered: int, offered: list[Any] | None, answer: AIMessage
    ) -> str:
        """Text from the end of the answered turn on. Raises `TemplateMismatch` if the template
        changes what the policy saw or wrote.
        """
        seen = self._arranged(turns[:answered], offered)
        full = self._arranged(turns, offered)
        if not full.startswith(seen):
            raise TemplateMismatch(
                "the chat template renders the turns before the answer differently"
            )
        ending = self._ending(turns[answered])
        end = -1 if ending.next_role else full.find(ending.text, len(seen))
        if end < 0 or (ending.text != ending.later and not turns[answered].get("tool_calls")):
            own = self._arranged(turns[: answered + 1], offered, header=False)
            end = ending.place(own, len(seen))
            if end < 0 or not full.startswith(own[:end]):
                raise TemplateMismatch(
                    "the chat template does not write the end of the answered turn"
                )
        words = self.dialect.shape.words or not turns[answered].get("tool_calls")
        if not self._holds(full[len(seen) : end], answer, words=words):
            raise TemplateMismatch("the chat template does not keep the text of the answered turn")
        return ending.following(full, end)

    def _what_follows_without_thoughts(
        self, turns: list[Any], answered: int, offered: list[Any] | None
    ) -> str:
        """Text after the answered turn, if the template drops thoughts that the codec keeps. The
        template gets the conversation without thoughts.
        """
        bare = [self._without_thoughts(turn) for turn in turns]
        stand_in = _STAND_IN
        while stand_in in self._arranged(bare, offered):  # a message contains it
            stand_in += _STAND_IN
        bare[answered] = {**bare[answered], "content": stand_in}
        before, found, after = self._arranged(bare, offered).partition(stand_in)
        earlier = self._arranged(bare[:answered], offered, header=False)
        if not self._without_frames(before).startswith(self._without_frames(earlier)):
            raise TemplateMismatch(
                "the chat template renders the turns before the answer differently"
            )
        ending = self._ending(bare[answered])
        own = self._arranged(bare[: answered + 1], offered, header=False).partition(stand_in)[2]
        end = ending.place(own)
        if not found or end < 0 or not after.startswith(own[:end]):
            raise TemplateMismatch("the chat template does not write the end of the answered turn")
        return ending.following(after, end)

    def _without_thoughts(self, turn: Any) -> dict[str, Any]:
        thoughts = self.dialect.thoughts
        if thoughts is None or turn["role"] != "assistant":
            return turn
        bare = {key: value for key, value in turn.items() if key != thoughts.field}
        if thoughts.in_content:
            bare["content"] = thoughts.split(turn["content"])[1]
        return bare

    def _without_frames(self, rendered: str) -> str:
        """Text without white space and marks of thoughts, since a template may write empty thoughts
        into some turns.
        """
        thoughts = self.dialect.thoughts
        if thoughts is None or self.dialect.form.header:  # these marks are headers of messages
            return _squeezed(rendered)
        return _squeezed(rendered.replace(thoughts.open, "").replace(thoughts.close, ""))

    def _keeps(self, answer: AIMessage, turn: Any, following: Sequence[BaseMessage]) -> bool:
        """True if the codec keeps the answer's thoughts although the template drops them."""
        thoughts = self.dialect.thoughts
        if self.keep_thoughts and thoughts is not None:
            return True
        called = bool(answer.tool_calls or invalid_tool_calls(answer))
        if not called or not all(isinstance(message, ToolMessage) for message in following):
            return False
        # the template has no place for the call, for example an unreadable one
        if not turn.get("tool_calls"):
            return True
        if thoughts is None:
            return False
        # the template has no place for thoughts
        if thoughts.field is None and not thoughts.in_content:
            return True
        # the template drops only empty thoughts
        return thoughts.opened and not (reasoning_of(answer) or "").strip()

    def _ending(self, turn: Any) -> Ending:
        return self.dialect.call if turn.get("tool_calls") else self.dialect.answer

    def _holds(self, rendered: str, message: AIMessage, *, words: bool = True) -> bool:
        """True if `rendered` contains the thoughts of an answer, and its words if `words` is set."""
        reasoning, content = thoughts_and_content(message, self.dialect)
        written = _squeezed("".join(text for text, _ in self._guard.split(rendered)))
        wanted = (
            _squeezed(without_surrogates(text))
            for text in (content if words else "", reasoning or "")
        )
        return all(text in written for text in wanted)

    def _written(self, message: AIMessage) -> str:
        """Answer as the policy would write it, if the template does not."""
        form = self.dialect.form
        thoughts = self.dialect.thoughts
        guard = self._guard
        reasoning, content = thoughts_and_content(message, self.dialect)
        text = guard.text(content, self._ends_pattern)
        calls = [
            guard.tree({"name": c["name"], "args": c["args"]}, self._tags)
            for c in message.tool_calls
        ]
        if calls:
            text = (form.words.replace("{}", text) if text.strip() else "") + form.write(calls)
        if thoughts is None:
            return text
        thought = guard.text(reasoning or "", self._tags)
        if form.header:  # thoughts and words are separate messages
            end, header, begin = thoughts.close.partition(form.header)
            text = text if calls else begin + text
            return f"{thoughts.open}{thought}{end}{header}{text}" if thought else text
        if reasoning is None and not thoughts.opened:
            return text
        written = thoughts.written(thought, text)
        return (
            written.removeprefix(thoughts.open).removeprefix("\n") if thoughts.opened else written
        )

    def _before_words(self) -> str:
        """Text between the end of a prompt and the visible text of an answer that has no thoughts."""
        thoughts = self.dialect.thoughts
        if self.dialect.form.header:
            return self.dialect.form.shown_after[0]
        return f"\n{thoughts.close}\n\n" if thoughts is not None and thoughts.opened else ""

    def _read_calls(self, text: str, tools: Sequence[dict[str, Any]]) -> bool:
        parsed = self.parse(text, tools)
        return bool(parsed.tool_calls or parsed.invalid_tool_calls)

    _any_tool: Sequence[dict[str, Any]] = (
        {"type": "function", "function": {"name": "", "parameters": {}}},
    )

    # text to ids

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
            ids.extend(
                self._plain_ids(text)
                if guarded
                else self._encoder.encode(text, add_special_tokens=False).ids
            )
        return tuple(ids)

    def _encode_plainly(self, text: str) -> tuple[int, ...]:
        """Ids of a guarded spelling as plain text. If the vocabulary holds the spelling even as
        plain text, it is encoded character by character.
        """
        ids = self._plain_encoder.encode(text, add_special_tokens=False).ids
        if self._added_ids.isdisjoint(ids):
            return tuple(ids)
        spelled = [
            i
            for char in text
            for i in self._plain_encoder.encode(char, add_special_tokens=False).ids
        ]
        return tuple(i for i in spelled if i not in self._added_ids)

    # messages to text

    def _arranged(self, turns: list[Any], offered: list[Any] | None, *, header: bool = True) -> str:
        return self._render(*self._arranging.arranged(turns, offered), header=header)

    def _render(
        self, dicts: list[dict[str, Any]], tools: list[Any] | None, *, header: bool = True
    ) -> str:
        """Render the conversation as text. Recent results are cached, since the rollouts of a group
        begin alike, and a turn needs the text of the previous turn. If a template reads a clock, it
        is rendered each time.
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

    def _render_afresh(
        self, template: str, dicts: list[dict[str, Any]], tools: list[Any] | None, header: bool
    ) -> str:
        try:
            rendered, _ = _templates.render_jinja_template(
                [dicts],
                tools=tools,
                chat_template=template,
                add_generation_prompt=header,
                **self._variables,
            )
        except MemoryError:
            raise
        except TemplateSyntaxError as error:
            raise ModelError(
                f"The chat template of {self._named} cannot be read: line {error.lineno}:"
                f" {error.message}.",
                "Correct the template, or name another with ?template=FILE.",
            ) from error
        # a template is a program, so any exception may come from it
        except Exception as error:
            said = (
                str(error)
                if isinstance(error, TemplateError)
                else f"{type(error).__name__}: {error}"
            )
            raise TemplateRefusalError(
                f"The chat template of {self._named} refuses the conversation: {said.rstrip('.')}.",
                "Read in the template which conversations it accepts, such as the order of roles"
                " or the number of calls in an answer.",
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

    def _turns(self, messages: Sequence[BaseMessage]) -> list[Any]:
        return [self._arranging.turn(message) for message in messages]

    def _guarded_tools(self, tools: Sequence[dict[str, Any]]) -> list[Any] | None:
        if not tools:
            return None
        for fault in () if self.speech is None else self.speech.faults:
            if fault.about_tools:  # tools would be shown wrongly without an error
                raise ModelError(
                    f"Tools cannot be offered to {self._named}: {fault.what}.", fault.hint
                )
        key = repr(tools)
        with self._lock:
            guarded = self._offered.get(key)
        if guarded is None:
            guarded = self._guard.tree(list(tools), self._tags)
            with self._lock:
                self._offered[key] = guarded
        return guarded

    def _source(self) -> str:
        """All templates of the tokenizer as one text. Raises `ModelError` if it has none."""
        template = getattr(self.tokenizer, "chat_template", None)
        if not template:
            raise no_template(self.tokenizer.name_or_path)
        return template if isinstance(template, str) else "\n".join(map(str, template.values()))


def no_template(name: str) -> ModelError:
    """Error for a tokenizer that has no chat template."""
    return ModelError(
        f"The tokenizer of {name!r} has no chat template, so it cannot encode a conversation.",
        "Use an instruction-tuned model, name a template by ?template=FILE, or put"
        " chat_template.jinja beside it.",
    )


def _rebuilt(
    kind: type[ChatTemplateCodec], tokenizer: Any, tools: str | None, keep: bool, ends: Any
) -> Any:
    return kind(tokenizer, tools=tools, keep_thoughts=keep, ends=ends)


def _weight(rendered: tuple[str, str]) -> int:
    """Weight of a cache entry: twice the length of its text, since the key is about as long."""
    return 2 * len(rendered[1])


def _squeezed(text: str) -> str:
    """Text without white space, since trimmed or re-indented text counts as unchanged."""
    return "".join(text.split())
