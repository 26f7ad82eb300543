"""Model strings: the parsed name of a model and its loading options.

An example is `hf:Qwen/Qwen2.5-1.5B-Instruct?load=nf4&device=cuda`. A string has a scheme, a name,
and, after `?`, options for weights that are loaded into this process. The whole string is the
model's recorded name, by which a resumed run loads the same model in the same way. Options are
checked when the string is parsed, before anything is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from urllib.parse import unquote

from hrm_agent.errors import ModelError, nearest
from hrm_agent.models.cached.known import KNOWN_MODELS

__all__ = [
    "CodecOptions",
    "LoadOptions",
    "ModelString",
    "codec_options",
    "is_folder",
    "parse_model",
]

_LOCAL = ("", "builtin", "fetched", "gguf", "hf")
"""Schemes of weights that are loaded into this process (a folder has an empty scheme)."""
_OWN_OPTIONS = ("vllm",)
"""Schemes whose engines parse their own options."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options for loading weights into this process."""

    load: str | None = None
    """Quantization by bitsandbytes, `nf4` (4 bits) or `int8` (None: unchanged)."""
    dtype: str = "auto"
    """Number format of the weights: `float32`, `bfloat16`, `float16`, or `auto` for the stored one.
    """
    device: str = "auto"
    """Device of the weights: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` for a GPU if there is one,
    else the CPU.
    """
    adapter: str | None = None
    """Folder or hub name of a LoRA adapter that PEFT knows."""
    kernel: str = "auto"
    """Multiplication with 4-bit weights on a CPU: `plain`, or `auto` for packed weights if possible
    (`hrm_agent.models.loading.load_weights`).
    """


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """Options of the conversation format, which override what the model's tokenizer has."""

    template: str | None = None
    """File of the chat template (None: the template of the tokenizer)."""
    tools: str | None = None
    """Form of tool calls by name, or `prompted` (None: detected from the template's output)."""
    thoughts: str | None = None
    """`keep` keeps the thoughts of earlier turns (None: the template decides)."""
    renderer: str | None = None
    """Renderer of the library `renderers` in place of the template, or `auto` (None: the template).
    """

    def __post_init__(self) -> None:
        """Raise `ModelError` if both a template and a renderer are given."""
        if self.template is not None and self.renderer is not None:
            raise ModelError(
                f"?template={self.template} and ?renderer={self.renderer} are given at once.",
                "Name only one of them, since a renderer replaces the template.",
            )

    def query(self) -> dict[str, str]:
        """Options that are set, by name."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in given if value is not None}

    def over(self, usual: CodecOptions) -> CodecOptions:
        """Merge these options over `usual`. A template here also replaces a renderer there, and the
        reverse.
        """
        given = self.query()
        kept = usual.query()
        if given.keys() & {"template", "renderer"}:
            kept = {
                name: value for name, value in kept.items() if name not in ("template", "renderer")
            }
        return CodecOptions(**{**kept, **given})


_VALUES = {
    "load": ("nf4", "int8"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "kernel": ("auto", "plain"),
    "thoughts": ("keep",),
}
_DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, slots=True)
class ModelString:
    """Parsed model string."""

    text: str
    """Whole string, as recorded."""
    scheme: str
    """Scheme: `builtin`, `hf`, `gguf`, `vllm`, `scripted` or a provider's. It is empty for a
    folder, and `fetched` for a known model.
    """
    name: str
    """Name without scheme and options."""
    options: LoadOptions = field(default=LoadOptions())
    """Options for loading weights into this process (defaults if the string has none)."""
    codec: CodecOptions = field(default=CodecOptions())
    """Options of the conversation format (defaults if the string has none)."""

    @property
    def local(self) -> bool:
        """True if the string names weights that are loaded into this process."""
        return self.scheme in _LOCAL

    @property
    def base(self) -> str:
        """String without its options."""
        return self.name if self.scheme in ("", "fetched") else f"{self.scheme}:{self.name}"


def parse_model(text: str) -> ModelString:
    """Parse a model string. Raises `ModelError` for an invalid option or value."""
    if is_folder(text):
        return ModelString(text, "", text)
    base, asked, query = text.partition("?")
    scheme, colon, rest = base.partition(":")
    if not colon or is_folder(base):
        scheme = "fetched" if base in KNOWN_MODELS and not is_folder(base) else ""
        rest = base
    if scheme in _OWN_OPTIONS:
        return ModelString(text, scheme, text.partition(":")[2])
    if scheme not in _LOCAL:
        if asked and scheme != "scripted":
            raise ModelError(
                f"{text!r} has options, but a hosted model takes none.",
                f"Write {base}. Settings of the provider are environment variables.",
            )
        if scheme and not rest:
            raise ModelError(f"{text!r} names no model.", f"Write {text}NAME, as in openai:gpt-5.")
        return ModelString(text, scheme, text.partition(":")[2])
    given: dict[str, str] = {}
    known = [option.name for kind in (LoadOptions, CodecOptions) for option in fields(kind)]
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if name not in known:
            raise ModelError(
                f"{text!r}: a model has no option {name!r}.",
                f"{nearest(name, known)} Known: {', '.join(known)}.".strip(),
            )
        if name in given or not equals or not value:
            raise ModelError(
                f"{text!r} gives the option {name!r} twice or no value.",
                f"Write {name}=VALUE, once.",
            )
        given[name] = unquote(value)
        _check(text, name, given[name])
    spoken = {
        each.name: given.pop(each.name) for each in fields(CodecOptions) if each.name in given
    }
    return ModelString(text, scheme, rest, LoadOptions(**given), CodecOptions(**spoken))


def codec_options(text: str, given: Mapping[str, str]) -> CodecOptions:
    """Options of the conversation format among all options of a string whose engine parses its own
    options. Raises `ModelError`.
    """
    own = {each.name: given[each.name] for each in fields(CodecOptions) if given.get(each.name)}
    for name, value in own.items():
        _check(text, name, value)
    return CodecOptions(**own)


def is_folder(text: str) -> bool:
    """True if a text is the path of a folder. Never raises: an impossible path, for example a path
    that is too long, gives False.
    """
    return os.path.isdir(text)  # noqa: PTH112


def _check(text: str, name: str, value: str) -> None:
    if name == "device":
        kind, colon, number = value.partition(":")
        good = kind in _DEVICES and (not colon or (kind == "cuda" and number.isdecimal()))
        known = _DEVICES
    else:
        known = _VALUES.get(name, ())
        good = not known or value in known
    if not good:
        raise ModelError(
            f"{text!r}: the option {name} cannot be {value!r}.",
            f"{nearest(value, known)} Known: {', '.join(known)}.".strip(),
        )
