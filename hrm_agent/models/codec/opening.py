"""Loading and testing of a model's codec: its tokenizer with the chosen template and form of calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import transformers

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec, PolicyCodec, no_template
from hrm_agent.models.codec.proof import prove
from hrm_agent.models.codec.renderer_codec import RendererCodec
from hrm_agent.models.model_string import CodecOptions

__all__ = ["TEXT_PROBE", "ends_of", "load_codec_of", "load_tokenizer", "open_codec"]

_library: Any = transformers
TEXT_PROBE = "What is 6*7?\n\tdef f(x): return x\n"
"""Text with spaces, a tab and line ends, which every tokenizer of a language model decodes
unchanged.
"""


def load_tokenizer(path_or_name: str, options: CodecOptions | None = None) -> Any:
    """Tokenizer of a folder or of a model of the hub, with the chosen template. Raises
    `ModelError`.

    If the tokenizer does not decode text unchanged, it is loaded again, exactly as its file
    describes it. The first load goes wrong for some configurations: the library builds a different
    tokenizer, which loses spaces.
    """
    try:
        tokenizer: Any = _library.AutoTokenizer.from_pretrained(
            path_or_name, trust_remote_code=False
        )
    except Exception as error:  # the files may make the library raise anything
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
        file = Path(template)
        try:
            tokenizer.chat_template = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The chat template {str(file)!r} cannot be read: {_first_line(error)}.",
                "Name a readable file with ?template=FILE.",
            ) from error
    if not tokenizer.chat_template and (options is None or options.renderer is None):
        raise no_template(path_or_name)
    return tokenizer


def open_codec(
    tokenizer: Any, options: CodecOptions | None = None, generation: Any = None
) -> PolicyCodec:
    """Codec over a tokenizer. `generation`: the model's `GenerationConfig`, which names further
    ends of answers.

    Raises `ModelError` for an unusable template or renderer, and for a form of calls that the
    template does not write.
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
        # the renderer was chosen explicitly, so its faults raise even if no tools are offered
        if codec.speech.faults:
            raise ModelError(
                f"The renderer {options.renderer!r} cannot be used here:"
                f" {codec.speech.faults[0].what}.",
                "Leave ?renderer= out, to use the model's own template, or try ?tools=prompted"
                " beside it.",
            )
    return codec


def load_codec_of(path_or_name: str, options: CodecOptions | None = None) -> PolicyCodec:
    """Codec of a folder or of a model of the hub, without its weights. Raises `ModelError`."""
    tokenizer = load_tokenizer(path_or_name, options)
    try:
        generation = _library.GenerationConfig.from_pretrained(path_or_name)
    except Exception:  # many models have no generation configuration
        generation = None
    return open_codec(tokenizer, options, generation)


def ends_of(generation: Any) -> tuple[int, ...]:
    """Tokens that end an answer according to a model's generation configuration (empty if it names
    none).
    """
    named = getattr(generation, "eos_token_id", None)
    if named is None:
        return ()
    return (named,) if isinstance(named, int) else tuple(cast("list[int]", named))


def _of_tokenizers(path_or_name: str) -> Any:
    """Tokenizer of the `tokenizers` library, even if mistral-common is installed. transformers
    would then build a tokenizer of mistral-common.

    A model that only has Mistral's own file gets the template that mistral-common writes for it.
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
    except Exception:  # the file is missing, or cannot be read alone
        plain = None
    if plain is None or not _gives_text_back(plain):
        raise ModelError(
            f"The tokenizer of {path_or_name!r} does not decode text unchanged: {TEXT_PROBE!r}"
            f" becomes {said!r}.",
            "Use the tokenizer.json that the model was released with.",
        )
    return plain


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
