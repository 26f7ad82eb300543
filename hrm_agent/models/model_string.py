"""A model string, taken apart: what it names, and how that is to be loaded.

`hf:Qwen/Qwen2.5-1.5B-Instruct?load=nf4&device=cuda`: a scheme, a name, and after `?` options for
weights that are loaded into this process. The whole string is the model's name on record, so that a
run that is resumed loads the same model in the same way. Options are checked when the string is
read, before anything is loaded.
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
"""Schemes of weights that are loaded here; the empty one is a folder's."""
_OWN_OPTIONS = ("vllm",)
"""Schemes whose engines read their options themselves."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How weights get into this process."""

    load: str | None = None
    """`nf4` (4 bits) or `int8`, by bitsandbytes; None loads them as they are."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`; `auto` is what they are stored in."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`; `auto` is a GPU where there is one, else the CPU."""
    adapter: str | None = None
    """Folder or hub name of a LoRA adapter that PEFT knows."""
    kernel: str = "auto"
    """How a CPU multiplies by weights in 4 bits: `plain`; `auto` is packed where it can be
    (`hrm_agent.models.loading.load_weights`).
    """


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """How a model is spoken to, where its tokenizer alone does not say it well."""

    template: str | None = None
    """File of the chat template (None: the tokenizer's own)."""
    tools: str | None = None
    """Form of tool calls by name, or `prompted` (None: it is found by what the template writes)."""
    thoughts: str | None = None
    """`keep` leaves the thoughts of earlier turns where they are (None: as the template has it)."""
    renderer: str | None = None
    """Renderer of the library `renderers` in the place of the template, or `auto` (None: the
    template).
    """

    def __post_init__(self) -> None:
        """Raises `ModelError` for a template and a renderer at once."""
        if self.template is not None and self.renderer is not None:
            raise ModelError(
                f"?template={self.template} and ?renderer={self.renderer} are given at once.",
                "Name one: a renderer takes the place of the template.",
            )

    def query(self) -> dict[str, str]:
        """Options that were given, as a model string has them."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in given if value is not None}

    def over(self, usual: CodecOptions) -> CodecOptions:
        """These options, and from `usual` those that they leave open; a template also takes a
        renderer's place.
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
    """A model string, taken apart."""

    text: str
    """The whole, as recorded."""
    scheme: str
    """`builtin`, `hf`, `gguf`, `vllm`, `scripted` or a provider's; empty for a folder, `fetched`
    for a known model.
    """
    name: str
    """Without scheme and options."""
    options: LoadOptions = field(default=LoadOptions())
    """How weights are loaded into this process; the defaults where the string has none."""
    codec: CodecOptions = field(default=CodecOptions())
    """How the model is spoken to; the defaults where the string has none."""

    @property
    def local(self) -> bool:
        """It names weights that are loaded into this process."""
        return self.scheme in _LOCAL

    @property
    def base(self) -> str:
        """The string without its options."""
        return self.name if self.scheme in ("", "fetched") else f"{self.scheme}:{self.name}"


def parse_model(text: str) -> ModelString:
    """Take `text` apart. Raises `ModelError` for an option or a value that means nothing."""
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
                f"{text!r} has options, and a hosted model takes none.",
                f"Write {base}; the provider's own settings are environment variables.",
            )
        if scheme and not rest:
            raise ModelError(f"{text!r} names no model.", f"Write {text}NAME, as in openai:gpt-5.")
        return ModelString(text, scheme, text.partition(":")[2])
    given = _options(text, query)
    spoken = {
        each.name: given.pop(each.name) for each in fields(CodecOptions) if each.name in given
    }
    return ModelString(text, scheme, rest, LoadOptions(**given), CodecOptions(**spoken))


def codec_options(text: str, given: Mapping[str, str]) -> CodecOptions:
    """Options of how a model is spoken to, out of all that a string of another scheme gives. Raises
    `ModelError`.
    """
    own = {each.name: given[each.name] for each in fields(CodecOptions) if given.get(each.name)}
    for name, value in own.items():
        _check(text, name, value)
    return CodecOptions(**own)


def is_folder(text: str) -> bool:
    """For any text: a path that cannot be (too long, say) is none, and raises nothing."""
    return os.path.isdir(text)  # noqa: PTH112


def _options(text: str, query: str) -> dict[str, str]:
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
    return given


def _check(text: str, name: str, value: str) -> None:
    if name == "device":
        kind, colon, number = value.partition(":")
        good, known = (
            kind in _DEVICES and (not colon or (kind == "cuda" and number.isdecimal())),
            _DEVICES,
        )
    else:
        known = _VALUES.get(name, ())
        good = not known or value in known
    if not good:
        raise ModelError(
            f"{text!r}: {name} is not {value!r}.",
            f"{nearest(value, known)} Known: {', '.join(known)}.".strip(),
        )
