"""The codec of a model: its tokenizer, loaded and put to the test, and the template and form that
were asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import transformers

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec, PolicyCodec, no_template
from hrm_agent.models.codec.proof import Speech, prove
from hrm_agent.models.codec.renderer_codec import RendererCodec
from hrm_agent.models.model_string import CodecOptions

__all__ = ["TEXT_PROBE", "ends_of", "load_codec_of", "load_tokenizer", "open_codec"]

_library: Any = transformers
TEXT_PROBE = "What is 6*7?\n\tdef f(x): return x\n"
"""A text that every tokenizer of a language model gives back: spaces, a tab, line ends."""


def load_tokenizer(path_or_name: str, options: CodecOptions | None = None) -> Any:
    """The tokenizer of a folder or of a model of the hub, with the template that is asked for.
    Raises `ModelError`.

    A tokenizer that does not give text back is loaded once more as its file describes it: for some
    configurations the library rebuilds another one, which loses spaces.
    """
    try:
        tokenizer: Any = _library.AutoTokenizer.from_pretrained(
            path_or_name, trust_remote_code=False
        )
    except Exception as error:  # whatever the files made the library raise
        raise ModelError(
            f"The tokenizer of {path_or_name!r} cannot be loaded: {_first_line(error)}",
            "Check the folder, or the name on huggingface.co/models and the network.",
        ) from error
    if type(tokenizer).__name__ == "MistralCommonBackend":
        tokenizer = _of_tokenizers(path_or_name)
    if not _gives_text_back(tokenizer):
        tokenizer = _as_in_its_file(path_or_name, tokenizer)
    template = options.template if options is not None else None
    if template is not None:
        tokenizer.chat_template = _read_template(Path(template))
    if not tokenizer.chat_template and (options is None or options.renderer is None):
        raise no_template(path_or_name)
    return tokenizer


def open_codec(
    tokenizer: Any, options: CodecOptions | None = None, generation: Any = None
) -> PolicyCodec:
    """The codec over a tokenizer. `generation`: the model's `GenerationConfig`, which names further
    ends of answers.

    Raises `ModelError` for a template or a renderer that cannot be used, and for a form of calls
    that is not its own.
    """
    options = options or CodecOptions()
    asked: dict[str, Any] = {
        "tools": options.tools,
        "keep_thoughts": options.thoughts == "keep",
        "ends": ends_of(generation),
    }
    if options.renderer is None:
        codec = ChatTemplateCodec(tokenizer, **asked)
        codec.speech = prove(codec, generation)
    else:
        codec = RendererCodec(tokenizer, options.renderer, **asked)
        codec.speech = prove(codec, generation)
        _refuse_faulty(options.renderer, codec.speech)
    return codec


def load_codec_of(path_or_name: str, options: CodecOptions | None = None) -> PolicyCodec:
    """The codec of a folder or of a model of the hub, without its weights. Raises `ModelError`."""
    tokenizer = load_tokenizer(path_or_name, options)
    try:
        generation = _library.GenerationConfig.from_pretrained(path_or_name)
    except Exception:  # many models have none
        generation = None
    return open_codec(tokenizer, options, generation)


def ends_of(generation: Any) -> tuple[int, ...]:
    """Tokens that end an answer, as a model's generation configuration names them: one, several or
    none.
    """
    named = getattr(generation, "eos_token_id", None)
    if named is None:
        return ()
    return (named,) if isinstance(named, int) else tuple(cast("list[int]", named))


def _of_tokenizers(path_or_name: str) -> Any:
    """The tokenizer of the `tokenizers` library where mistral-common, which is installed, would
    read another one.

    A model that comes with Mistral's own file alone gets the template that mistral-common writes
    for it.
    """
    from transformers.integrations.mistral.constants import is_tekken_vocab_filename
    from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

    found = _library.AutoTokenizer.from_pretrained(path_or_name, mistral_format=False)
    file = str(found.init_kwargs.get("vocab_file"))
    made: Any = (
        convert_tekken_tokenizer(file)
        if is_tekken_vocab_filename(file) and not found.chat_template
        else found
    )
    return made


def _gives_text_back(tokenizer: Any) -> bool:
    ids = tokenizer.encode(TEXT_PROBE, add_special_tokens=False)
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False) == TEXT_PROBE


def _as_in_its_file(path_or_name: str, loaded: Any) -> Any:
    said = loaded.decode(
        loaded.encode(TEXT_PROBE, add_special_tokens=False), clean_up_tokenization_spaces=False
    )
    try:
        plain = _library.PreTrainedTokenizerFast.from_pretrained(path_or_name)
    except Exception:  # no such file, or none that can be read alone
        plain = None
    if plain is None or not _gives_text_back(plain):
        raise ModelError(
            f"The tokenizer of {path_or_name!r} does not give text back: {TEXT_PROBE!r} comes back"
            f" as {said!r}.",
            "Use the tokenizer.json that the model was released with.",
        )
    return plain


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"The chat template {str(file)!r} cannot be read: {_first_line(error)}.",
            "Name a file by ?template=FILE.",
        ) from error


def _refuse_faulty(renderer: str, speech: Speech) -> None:
    """A renderer is a choice: one that does not work with tools is refused to those who offer none,
    too.
    """
    if speech.faults:
        raise ModelError(
            f"The renderer {renderer!r} cannot be used here: {speech.faults[0].what}.",
            "Leave ?renderer= out, which uses the model's own template, or try ?tools=prompted"
            " beside it.",
        )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
