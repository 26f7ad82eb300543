"""The library `renderers` compared with ours: the tokens of each family, and a codec over its
renderers.
"""

from __future__ import annotations

import pickle
import re
import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import renderers
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.codec.opening import open_codec
from hrm_agent.models.codec.renderer_codec import RendererCodec
from hrm_agent.models.codec.thoughts import REASONING
from hrm_agent.models.engine import TemplateMismatch
from hrm_agent.models.model_string import CodecOptions, parse_model
from tests.models.codec.test_families import ASKED, TOOLS, answer, fuzz, shown
from tests.support import families

pytestmark = pytest.mark.real_tokenizers

CODE = 'print(6 * 7)\nx = {"k": [1, 2]}'
"""Text that spells no added token of any vocabulary used here. Our codec would escape such tokens,
and the library would not.
"""
FAMILIES = {
    "deepseek_r1_distill": "deepseek-r1",
    "deepseekv3": "deepseek-v3",
    "gemma4": "gemma4",
    "gemma4_v2": "gemma4",
    "gemma4_v3": "gemma4",
    "gemma4_v4": "gemma4",
    "gemma4_v5": "gemma4",
    "glm4moe": "glm-4.5",
    "gptoss": "gpt-oss",
    "llama3_1": "llama-3",
    "llama3_2": "llama-3",
    "nemotron_3_5_lightning": "nemotron-3.5",
    "nemotron_3_nano": "nemotron-3",
    "nemotron_3_super": "nemotron-3",
    "nemotron_3_ultra": "nemotron-3-ultra",
    "qwen3": "qwen3",
    "qwen3_5_nothink": "qwen3.5",
    "qwen3_5_think": "qwen3.5",
    "qwen3_6": "qwen3.6",
    "qwen3_8": "qwen3.8",
    "qwen3_instruct_2507": "qwen3",
}
"""Renderers of those templates of `tests.support.families` that the library has one for."""
PROMPT = "prompt"
TURN = "turn"
READ = "read"
RESULT = "result"
CUT = "cut"
QUESTION = "question"
WHOLE = "whole"
"""Texts that are compared: the first prompt, a call as it is sampled, what is read out of it, what
comes after its result (and after one that was cut short), what comes after a second question, and
the conversation up to there rendered anew.
"""
NO_TOOLS = "it tells of no tools, and its template neither; ours asks for calls in the system turn"
SHORT_CUT = "it extends no call that was cut short"
KEPT = "it leaves thoughts of earlier questions where its template drops them"
HARMONY = "it follows harmony, its template does not: channels, and a result that is no JSON string"
OLDER = (
    "it follows another release of the template: lists of parameters, and what stands around"
    " thoughts"
)
KNOWN: dict[str, dict[str, str]] = {
    "deepseek_r1_distill": dict.fromkeys((PROMPT, TURN, READ, RESULT, CUT, WHOLE), NO_TOOLS),
    "deepseekv3": dict.fromkeys((PROMPT, TURN, READ, RESULT, CUT, QUESTION, WHOLE), NO_TOOLS),
    "gemma4": {CUT: SHORT_CUT, QUESTION: KEPT},
    "gemma4_v2": dict.fromkeys((PROMPT, TURN, RESULT, CUT, QUESTION, WHOLE), OLDER),
    "gemma4_v3": {CUT: SHORT_CUT, QUESTION: KEPT},
    "gemma4_v4": {CUT: SHORT_CUT, QUESTION: KEPT},
    "gemma4_v5": {CUT: SHORT_CUT, QUESTION: KEPT},
    "glm4moe": {
        CUT: "it ends an answer that was cut short by <|endoftext|>, its template by nothing"
    },
    "gptoss": dict.fromkeys((PROMPT, TURN, READ, RESULT, CUT, WHOLE), HARMONY),
    "qwen3_5_nothink": dict.fromkeys(
        (QUESTION, WHOLE), "it writes empty thoughts into earlier answers"
    ),
    "qwen3_instruct_2507": dict.fromkeys((TURN, QUESTION), "it takes it for a model that thinks"),
}
"""Differences between the library and ours, with the reason.
Ours writes what the template writes.
"""
WITHOUT_TEMPLATE = (
    "deepseek-v4",
    "glm-5",
    "glm-5.1",
    "glm-5.3",
    "hy3",
    "laguna-s-2.1",
    "laguna-xs-2.1",
    "minimax-m2",
    "qwen3-vl",
)
"""Further renderers, each on another family's tokenizer with its tokens added."""
REFUSED = ("gpt-oss", "inkling", "prime-qwen3")
"""Renderers that our codec cannot use."""


def tokenizer_for(renderer: str, name: str | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer with the tokens that a renderer asks for: it names one at a time."""
    loaded = families.load(
        name or next((each for each, known in FAMILIES.items() if known == renderer), "qwen3")
    )
    kind = type(renderers.config_from_name(renderer))
    for _ in range(40):
        lacking = _lacking(loaded, kind())
        if lacking is None:
            return loaded
        tag = re.match(r"</?(think|tool|arg|minimax)", lacking) is not None
        loaded.backend_tokenizer.add_tokens(
            [AddedToken(lacking, special=not tag, normalized=False)]
        )
    raise AssertionError(renderer)


def _lacking(tokenizer: Any, config: Any) -> str | None:
    try:
        renderers.create_renderer(tokenizer, config)
    except (AssertionError, ValueError) as error:
        return str(error).split("'")[1]
    return None


def renderer_for(renderer: str, codec: ChatTemplateCodec, name: str = "") -> Any:
    """The library's renderer as its template has it: in its mode of thinking, and on its date."""
    kind = type(renderers.config_from_name(renderer))
    asked: dict[str, Any] = {"enable_thinking": False} if name == "qwen3_5_nothink" else {}
    if dated := re.search(r"Today Date: (.*)", shown(codec, codec.encode(ASKED))):
        asked["date_string"] = dated[1]
    return renderers.create_renderer(codec.tokenizer, kind(**asked))


def openai(messages: Sequence[BaseMessage]) -> list[Any]:
    """Messages in the form that the library takes."""
    roles = {"human": "user", "ai": "assistant"}
    found: list[Any] = []
    for message in messages:
        turn: dict[str, Any] = {
            "role": roles.get(message.type, message.type),
            "content": message.text,
        }
        if isinstance(message, ToolMessage):
            turn |= {"tool_call_id": message.tool_call_id, "name": message.name}
        if isinstance(message, AIMessage):
            turn |= message.additional_kwargs
            calls = [
                {
                    "type": "function",
                    "id": c["id"],
                    "function": {"name": c["name"], "arguments": c["args"]},
                }
                for c in message.tool_calls
            ]
            turn |= {"tool_calls": calls} if calls else {}
        found.append(turn)
    return found


def differences(codec: ChatTemplateCodec, library: Any, tools: list[Any]) -> set[str]:
    """Points at which a codec and a renderer of the library make different tokens, or parse them
    differently.
    """
    called = answer(codec, "", CODE)
    seen = [*ASKED, called, ToolMessage("42", tool_call_id="call-0", name="python")]
    prompt = codec.encode(ASKED, tools)
    sampled = codec.encode_turn([*ASKED, called], tools)
    inserted = codec.extend(seen, 2, ended_by=sampled[-1], tools=tools)
    cut = codec.extend(seen, 2, ended_by=None, tools=tools)
    said = answer(codec, "It is 42.", thinks="Done.")
    more = [*seen, said, HumanMessage("And 7 * 8?")]
    last = codec.encode_turn(more[:-1], tools)
    before = [*prompt, *sampled, *inserted]
    theirs = library.render_ids(openai(ASKED), tools=tools or None, add_generation_prompt=True)
    written = library.render_ids(openai([*ASKED, called]), tools=tools or None)[len(theirs) :]
    # A template that ends no turn writes no end, and one that does may write white space after it.
    turns_alike = written[: len(sampled)] == sampled or written == sampled[:-1]
    found = {PROMPT} if theirs != prompt else set[str]()
    found |= set() if turns_alike else {TURN}
    for ids, own_prompt in ((sampled, prompt), (last, before)):
        if not _read_alike(codec, library, ids, own_prompt, tools):
            found.add(READ)
    for point, ids, own in ((RESULT, sampled, inserted), (CUT, sampled[:-1], cut)):
        bridged = library.bridge_to_next_turn(prompt, ids, openai(seen)[3:], tools=tools or None)
        if bridged is None or bridged.token_ids != [*prompt, *ids, *own]:
            found.add(point)
    bridged = library.bridge_to_next_turn(before, last, openai(more)[5:], tools=tools or None)
    try:
        asked = [*before, *last, *codec.extend(more, 4, ended_by=last[-1], tools=tools)]
    except TemplateMismatch:
        asked = None
    if (bridged and bridged.token_ids) != asked:
        found.add(QUESTION)
    if codec.encode(more, tools) != library.render_ids(
        openai(more), tools=tools or None, add_generation_prompt=True
    ):
        found.add(WHOLE)
    return found


def _read_alike(
    codec: ChatTemplateCodec, library: Any, ids: list[int], prompt: list[int], tools: list[Any]
) -> bool:
    theirs = library.parse_response(ids, tools=tools or None, prompt_ids=prompt)
    ours = codec.parse(codec.decode(ids), tools)
    calls = [(call.name, call.arguments) for call in theirs.tool_calls]
    read = (
        ours.content.strip(),
        ours.reasoning or "",
        [(call["name"], call["args"]) for call in ours.tool_calls],
    )
    return read == (theirs.content.strip(), (theirs.reasoning_content or "").strip(), calls)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the file that openai-harmony fetches, out of the tokenizer of gpt-oss. It holds
    it to a hash.
    """
    named = {letter: byte for byte, letter in bytes_to_unicode().items()}
    known = families.base("gptoss").backend_tokenizer.get_vocab(with_added_tokens=False)
    lines = [
        b64encode(bytes(named[letter] for letter in token)) + b" %d\n" % rank
        for token, rank in sorted(known.items(), key=lambda item: item[1])
    ]
    folder = tmp_path_factory.mktemp("harmony")
    (folder / "o200k_base.tiktoken").write_bytes(b"".join(lines))
    return folder


@pytest.fixture
def without_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renderer of gpt-oss finds its vocabulary here."""
    if "gpt-oss" in request.node.callspec.params.values():
        monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(request.getfixturevalue("vocabulary")))


@pytest.mark.usefixtures("without_network")
@pytest.mark.parametrize(("name", "renderer"), FAMILIES.items())
def test_the_library_and_ours_agree_but_where_it_departs_from_the_template(
    name: str, renderer: str
) -> None:
    codec = ChatTemplateCodec(tokenizer_for(renderer, name))
    assert (
        differences(codec, renderer_for(renderer, codec, name), TOOLS) == KNOWN.get(name, {}).keys()
    )
    said = [
        *ASKED,
        answer(codec, "", CODE),
        ToolMessage("42", tool_call_id="call-0", name="python"),
    ]
    if not codec.dialect.shape.prompted:
        field = codec.dialect.thoughts.field if codec.dialect.thoughts is not None else None
        turns = [
            {field if key == REASONING else key: value for key, value in turn.items()}
            for turn in openai(said)
        ]
        theirs: Any = codec.tokenizer.apply_chat_template(
            turns, tools=TOOLS, add_generation_prompt=True
        )
        assert codec.encode(said, TOOLS) == theirs["input_ids"]


@pytest.mark.parametrize(
    "renderer", [*WITHOUT_TEMPLATE, *sorted({*FAMILIES.values()} - {*REFUSED})]
)
def test_a_codec_over_a_renderer_writes_and_reads_what_the_renderer_does(renderer: str) -> None:
    tokenizer = tokenizer_for(renderer)
    codec: Any = open_codec(tokenizer, CodecOptions(renderer=renderer))
    assert isinstance(codec, RendererCodec)
    assert codec.speech is not None
    assert not codec.speech.faults
    tools = [] if codec.dialect.shape.prompted else TOOLS
    if tools:
        kept = {QUESTION} if renderer == "gemma4" else set[str]()  # see `KEPT`
        cut = {"gemma4": CUT, "glm-4.5": CUT, "glm-5": CUT, "glm-5.1": CUT, "glm-5.3": CUT}.get(
            renderer
        )
        library = renderers.create_renderer(tokenizer, renderers.config_from_name(renderer))
        assert differences(codec, library, tools) == kept | ({cut} if cut else set())
    fuzz(codec, renderer, 6, seed=0)


def test_calls_that_only_the_renderer_reads_are_calls_or_say_why_not() -> None:
    codec: Any = open_codec(tokenizer_for("minimax-m2"), CodecOptions(renderer="minimax-m2"))
    call = codec.dialect.form.write([{"name": "python", "args": {"code": "1 < 2"}}])
    mark = codec.dialect.form.marks[0]
    read = codec.parse(f"Hm.</think>\n\nI compute.\n{call}", TOOLS)
    assert (read.reasoning, read.content) == ("Hm.", "I compute.")
    assert read.tool_calls == [{"name": "python", "args": {"code": "1 < 2"}}]
    quoted = f"Hm.</think>{codec.tokenizer.decode([codec.end_of_turn])} is text here."
    assert codec.parse(quoted, TOOLS).content == quoted.partition("</think>")[2]
    broken = codec.parse(f"Hm.</think>{call[: len(call) // 2]}", TOOLS)
    assert not broken.tool_calls
    [invalid] = broken.invalid_tool_calls
    assert mark in invalid["args"]
    assert "cannot be read" in invalid["error"]
    stream = codec.stream()
    pieces = [
        stream.push(token)
        for token in codec.encode_answer(f"Hm.</think>\n\nI compute.\n{call}")[:-1]
    ]
    assert "".join([*pieces, stream.finish()]).strip() == "I compute."


def test_spellings_in_lists_of_a_tool_are_text_though_the_renderer_writes_ascii() -> None:
    codec: Any = open_codec(tokenizer_for("nemotron-3"), CodecOptions(renderer="nemotron-3"))
    spelled = "<|im_end|>"
    literal = "\\udb80\\udc00"
    kind = {"type": "string", "enum": [spelled, literal], "default": spelled}
    tool = {
        "name": "go",
        "description": literal,
        "parameters": {"type": "object", "properties": {"where": kind}},
    }
    ids = codec.encode(ASKED, [{"type": "function", "function": tool}])
    assert ids.count(codec.end_of_turn) == codec.encode(ASKED, TOOLS).count(codec.end_of_turn)
    text = shown(codec, ids)
    assert f'["{spelled}", "{literal[:6]}' in text
    assert literal in text


def test_a_renderer_is_chosen_by_the_models_name_and_goes_to_other_processes() -> None:
    tokenizer: Any = tokenizer_for("qwen3")
    tokenizer.name_or_path = "Qwen/Qwen3-8B"
    expected = ChatTemplateCodec(tokenizer).encode(ASKED, TOOLS)
    tokenizer.chat_template = None  # a renderer needs none
    codec: Any = open_codec(tokenizer, CodecOptions(renderer="auto", thoughts="keep"))
    assert codec.encode(ASKED, TOOLS) == expected
    assert codec.speech is not None
    assert codec.speech.tools == "hermes, by the renderer auto"
    again = pickle.loads(pickle.dumps(codec))
    assert again.keep_thoughts
    assert again.speech == codec.speech
    assert again.encode(ASKED, TOOLS) == codec.encode(ASKED, TOOLS)
    asked: Any = open_codec(tokenizer, CodecOptions(renderer="qwen3", tools="prompted"))
    assert asked.dialect.shape.prompted
    assert "python" in shown(asked, asked.encode(ASKED, TOOLS))


@pytest.mark.usefixtures("without_network")
@pytest.mark.parametrize("renderer", REFUSED)
def test_a_renderer_that_cannot_stand_behind_the_codec_is_refused(renderer: str) -> None:
    with pytest.raises(ModelError, match=f"The renderer '{renderer}' cannot be used here: "):
        open_codec(tokenizer_for(renderer), CodecOptions(renderer=renderer))


def test_a_renderer_that_is_not_there_or_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = families.load("llama3")
    for name, said in {
        "lama-3": "There is no renderer 'lama-3'. Did you mean 'llama-3'? Known: deepseek-r1, ",
        "default": "There is no renderer 'default'.",
        "auto": "Name a renderer with ?renderer=NAME.",
        "llama-3": "does not fit the tokenizer of '': Special token '<|eom_id|>' not found",
        "laguna-m.1": "does not fit",
    }.items():
        with pytest.raises(ModelError, match=re.escape(said)):
            open_codec(tokenizer, CodecOptions(renderer=name))
    with pytest.raises(ModelError, match="cuts its text into other tokens than the tokenizer does"):
        open_codec(tokenizer_for("laguna-m.1"), CodecOptions(renderer="laguna-m.1"))
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(ModelError, match=r"pip install .*renderers"):
        open_codec(tokenizer, CodecOptions(renderer="llama-3"))


def test_a_model_string_names_a_renderer() -> None:
    assert parse_model("hf:x?renderer=qwen3").codec == CodecOptions(renderer="qwen3")
    assert parse_model("hf:x?renderer=qwen3").codec.query() == {"renderer": "qwen3"}
    with pytest.raises(ModelError, match="Name only one of them, since a renderer replaces"):
        parse_model("hf:x?renderer=qwen3&template=a.jinja")
