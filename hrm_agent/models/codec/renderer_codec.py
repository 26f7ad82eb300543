"""Codec over a renderer of the library `renderers`, in place of a chat template.

The library writes the conversations of some thirty families, each by its own code. The renderer's
output replaces the template's text. `ChatTemplateCodec` does everything else, so its rules hold:
text is guarded before rendering and encoded afterwards, and a conversation is extended if the
renderer leaves the earlier turns unchanged. If a `CallForm` can read the calls that the renderer
writes, it reads the model's calls. Otherwise (MiniMax, DeepSeek V4, Hunyuan), the renderer reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast, get_args

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.errors import ModelError, TemplateRefusalError, nearest, to_install
from hrm_agent.models.codec.calls.form import CallForm, Schemas, add_call, add_invalid, schemas_of
from hrm_agent.models.codec.chat_template import KEEPING, ChatTemplateCodec
from hrm_agent.models.codec.dialect import PROBE_CALL, PROBE_TOOL, Dialect, alike, discover
from hrm_agent.models.codec.encoders import own_encoder
from hrm_agent.models.engine import ParsedTurn

__all__ = ["AUTO", "RendererCodec"]

AUTO = "auto"
"""Value of `?renderer=` that selects the renderer by the model's name on the hub."""
_NO_FAMILY = (AUTO, "default", "custom")
"""Names that the library uses for something other than a model family: selection by name, the
tokenizer's template, and code at a path.
"""
_OWN_FORM = "its own form"
"""Name of the form of calls if the renderer reads them."""
_QUESTION = {"role": "user", "content": "QUESTION"}
_WITHOUT = "Leave ?renderer= out to use the model's own template."
_ESCAPE = "\\udb"
_ESCAPED = re.compile(r"\\u(db[89ab][0-9a-f])\\u(d[c-f][0-9a-f]{2})")
"""Pattern of a placeholder of guarded text in ASCII-only JSON. If text in a message begins like a
placeholder, it is guarded, too.
"""


class RendererCodec(ChatTemplateCodec):
    """Conversion of messages to token ids and back, by a renderer of the library `renderers`."""

    def __init__(
        self,
        tokenizer: Any,
        renderer: str,
        *,
        tools: str | None = None,
        keep_thoughts: bool = False,
        ends: Iterable[int] = (),
    ) -> None:
        """`renderer`: a name in the library, or `auto`. The other parameters are those of
        `ChatTemplateCodec`.

        Raises `ModelError` if the library is missing or has no such renderer, or if the renderer
        does not fit the tokenizer.
        """
        self.written_by = f"the renderer {renderer}"
        self._renderer_name = renderer
        self._seen = _SeenTokenizer(tokenizer)
        self._renderer = _create(self._seen, renderer, keep_thoughts=keep_thoughts)
        super().__init__(tokenizer, tools=tools, keep_thoughts=keep_thoughts, ends=ends)
        self._check_tokens()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tokenizer, the given options and the result of the test, from which another
        process builds the codec again.
        """
        return (
            _rebuilt,
            (type(self), self.tokenizer, self._renderer_name, *self._asked),
            {"speech": self.speech},
        )

    def parse(
        self, text: str, tools: Sequence[dict[str, Any]] = (), *, thinks: bool = True
    ) -> ParsedTurn:
        """Content, thoughts and tool calls of an answer's text, see `Codec.parse`."""
        if self.dialect.form.name != _OWN_FORM or not thinks:
            return super().parse(text, tools, thinks=thinks)
        return self._read(
            self._ids(self._guard.text(text, self._ends_pattern)),
            schemas_of(tools),
            self._header_ids,
        )

    # replacements of the template

    def _discovered(self, controls: Sequence[str], tools: str | None) -> Dialect:
        found = discover(self._render, controls, "", tools)
        if tools is not None or not found.shape.prompted:
            return found
        try:
            own = self._own_form(found)
            return found if own is None else discover(self._render, controls, "", own)
        except ModelError:  # the renderer refuses the calls of the test, or does not list tools
            return found

    def _set_guard(self, spellings: dict[int, str], controls: Sequence[str]) -> None:
        super()._set_guard({**spellings, -1: _ESCAPE}, [*controls, _ESCAPE])

    def _template(self, tools: list[Any] | None) -> str:
        return self._renderer_name

    def _render_afresh(
        self, template: str, dicts: list[dict[str, Any]], tools: list[Any] | None, header: bool
    ) -> str:
        try:
            ids = self._renderer.render_ids(dicts, tools=tools, add_generation_prompt=header)
        except MemoryError:
            raise
        # a renderer is a program, so any exception may come from it
        except Exception as error:
            raise TemplateRefusalError(
                f"The renderer {template!r} refuses the conversation: {type(error).__name__}:"
                f" {error}.",
                _WITHOUT,
            ) from error
        return _ESCAPED.sub(_unescaped, self._seen.decode(ids))

    def _check_tokens(self) -> None:
        """Raise `ModelError` if encoding a rendered conversation gives other tokens than the
        renderer does.
        """
        called = AIMessage("", tool_calls=[{"type": "tool_call", "id": "call_0", **PROBE_CALL}])
        said = [
            SystemMessage("Be brief."),
            HumanMessage("What is 6 * 7?"),
            called,
            ToolMessage("42.", tool_call_id="call_0"),
        ]
        turns, tools = self._arranging.arranged(self._turns(said), [PROBE_TOOL])
        rendered = self._render(turns, tools)
        if self._ids(rendered) != list(
            self._renderer.render_ids(turns, tools=tools, add_generation_prompt=True)
        ):
            raise ModelError(
                f"The renderer {self._renderer_name!r} cuts its text into other tokens than the"
                " tokenizer does.",
                _WITHOUT,
            )

    # calls that only the renderer reads

    def _own_form(self, found: Dialect) -> CallForm | None:
        """Form in which the renderer writes calls. A call begins with the first added token that is
        not a mark of thoughts.
        """
        thoughts = found.thoughts
        frame = "" if thoughts is None else f"{thoughts.open}{thoughts.close}"
        added = self._encoder.get_added_tokens_decoder()
        written = (
            added[i].content
            for i in self._seen.encode(self._calls_text([PROBE_CALL]))
            if i in added
        )
        marks = tuple(mark for mark in written if mark not in frame)
        if not marks:
            return None

        def read(text: str, schemas: Schemas) -> ParsedTurn:
            return self._read(self._seen.encode(text), schemas)

        def write(calls: Sequence[Mapping[str, Any]]) -> str:
            text = self._calls_text(calls)
            return text[text.find(marks[0]) :]

        return CallForm(_OWN_FORM, marks[:1], marks, read, write)

    def _calls_text(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Text of an answer that only has calls, without its end."""
        functions = [{"name": call["name"], "arguments": call["args"]} for call in calls]
        made = [
            {"type": "function", "id": f"call_{i}", "function": each}
            for i, each in enumerate(functions)
        ]
        answer = {"role": "assistant", "content": "", "tool_calls": made}
        seen = self._seen.encode(self._render([_QUESTION], [PROBE_TOOL]))
        ids = self._seen.encode(self._render([_QUESTION, answer], [PROBE_TOOL], header=False))
        begin = alike(seen, ids)
        stops = self._renderer.get_stop_token_ids()
        end = next((i for i in range(begin, len(ids)) if ids[i] in stops), len(ids))
        return self._seen.decode(ids[begin:end])

    @cached_property
    def _header_ids(self) -> list[int]:
        """Token ids of a prompt. The end of the prompt shows if an answer begins inside thoughts."""
        return self._seen.encode(self._render([_QUESTION], None))

    def _read(
        self, ids: list[int], schemas: Schemas, prompt: list[int] | None = None
    ) -> ParsedTurn:
        named = ({"name": name, "parameters": parameters} for name, parameters in schemas.items())
        tools = [{"type": "function", "function": function} for function in named]
        try:
            found = self._renderer.parse_response(ids, tools=tools or None, prompt_ids=prompt)
        except Exception as error:  # what a policy writes must not make a run fail
            turn = ParsedTurn("")
            add_invalid(None, self._seen.decode(ids), f"the answer cannot be read: {error}", turn)
            return turn
        turn = ParsedTurn(found.content, reasoning=found.reasoning_content or None)
        for call in found.tool_calls:
            raw = (
                call.raw
                if call.token_span is None
                else self._seen.decode(ids[slice(*call.token_span)])
            )
            if (
                call.name
                and isinstance(call.arguments, dict)
                and call.status in ("ok", "unknown_tool")
            ):
                add_call(call.name, cast("dict[str, Any]", call.arguments), raw, turn)
            else:
                add_invalid(
                    call.name,
                    raw,
                    f"the call cannot be read: {str(call.status).replace('_', ' ')}",
                    turn,
                )
        return turn


class _SeenTokenizer:
    """Tokenizer that the renderer gets. It decodes every text unchanged, and reports no offsets."""

    def __init__(self, tokenizer: Any) -> None:
        self.name_or_path = str(getattr(tokenizer, "name_or_path", ""))
        self.chat_template: Any = getattr(tokenizer, "chat_template", None)
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.convert_tokens_to_ids: Callable[[str], Any] = tokenizer.convert_tokens_to_ids
        self._encoder = own_encoder(tokenizer)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return self._encoder.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Iterable[int], *_: Any, **__: Any) -> str:
        return self._encoder.decode(list(token_ids), skip_special_tokens=False)


def _create(tokenizer: _SeenTokenizer, name: str, *, keep_thoughts: bool) -> Any:
    """Create a renderer of the library. Raises `ModelError`."""
    try:
        import renderers
        from renderers.base import MODEL_RENDERER_MAP
    except ImportError as error:
        raise ModelError(
            "?renderer= needs the package renderers.", f"Run `{to_install('renderers')}`."
        ) from error
    kinds: Iterable[Any] = get_args(get_args(renderers.RendererConfig)[0])
    known = {kind.model_fields["name"].default: kind for kind in kinds}
    names = sorted(known.keys() - set(_NO_FAMILY))
    chosen = MODEL_RENDERER_MAP.get(tokenizer.name_or_path) if name == AUTO else name
    if chosen not in names:
        found = f"for {tokenizer.name_or_path!r}" if name == AUTO else repr(name)
        hint = "Name a renderer with ?renderer=NAME." if name == AUTO else nearest(name, names)
        known_names = (
            f"Known: {', '.join(names)}, and {AUTO}, for models by their names on the hub."
        )
        raise ModelError(f"There is no renderer {found}.", f"{hint} {known_names}".strip())
    kind = known[chosen]
    kept = {
        key: value
        for key, value in KEEPING.items()
        if keep_thoughts and key in kind.template_field_names()
    }
    try:
        return renderers.create_renderer(tokenizer, kind(**kept))
    # for example, a token is missing, or a vocabulary cannot be downloaded
    except Exception as error:
        raise ModelError(
            f"The renderer {chosen!r} does not fit the tokenizer of {tokenizer.name_or_path!r}:"
            f" {error}.",
            _WITHOUT,
        ) from error


def _unescaped(found: re.Match[str]) -> str:
    high, low = (int(half, 16) for half in found.groups())
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _rebuilt(
    kind: type[RendererCodec],
    tokenizer: Any,
    renderer: str,
    tools: str | None,
    keep: bool,
    ends: Any,
) -> Any:
    return kind(tokenizer, renderer, tools=tools, keep_thoughts=keep, ends=ends)
