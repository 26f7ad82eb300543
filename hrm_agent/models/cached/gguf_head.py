"""Head of a GGUF file: architecture, types of its tensors, and further facts for a conversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_agent.errors import ModelError, to_install

if TYPE_CHECKING:
    from hrm_agent.models.cached.gguf_reader import HeadReader

__all__ = ["GgufFacts", "check_is_gguf", "need_to_convert", "read_facts"]

_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """Facts in the head of a GGUF file."""

    architecture: str
    """Architecture as llama.cpp names it, such as `llama` or `qwen2`."""
    title: str | None
    """Name that the file gives the model (None if it gives none)."""
    license: str | None
    """SPDX identifier (None if the file names none)."""
    stored: str
    """Type that most weights are stored in, such as `Q4_1`."""
    types: frozenset[str]
    """Types of all tensors."""
    parameters: int
    """Number of parameters."""
    context: int | None
    """Maximum tokens of a conversation (None if the file has no limit)."""
    splits_like: str | None
    """Way of splitting text before encoding, as llama.cpp names it (None except for byte-level
    BPE).
    """
    rope_scaling: str | None
    """Kind of rotary scaling: `yarn`, `linear`, `longrope`, or `factors` for a tensor of factors
    (None without scaling).
    """
    rope_factors: tuple[float, ...] | None
    """Divisors of the rotary frequencies, one for each two dimensions of a head (None if there is
    no such tensor).
    """

    def __str__(self) -> str:
        return f"{self.architecture}, {self.parameters:,} parameters in {self.stored}"


def need_to_convert(what: str, packages: Sequence[str] = ("gguf", "torch", "transformers")) -> None:
    """Raise `ModelError`, with the install command, if a package for a conversion is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ModelError(f"{what} needs the package {package}.", f"Run `{to_install('gguf')}`.")


def read_facts(file: Path) -> GgufFacts:
    """Read the head of a GGUF file. Raises `ModelError` if it is not one, or is damaged."""
    check_is_gguf(file)
    need_to_convert(f"The GGUF file {file}", ["gguf"])
    from hrm_agent.models.cached.gguf_reader import HeadReader

    try:
        return _facts(file, HeadReader(file))
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(
            f"The GGUF file {file} is cut short or damaged: its {file.stat().st_size:,} bytes do"
            f" not hold what its head names ({' '.join(str(error).split())[:200]}).",
            "Download it again.",
        ) from error


def _facts(file: Path, reader: HeadReader) -> GgufFacts:
    architecture = reader.value("general.architecture", str)
    if architecture is None:
        raise ModelError(
            f"The GGUF file {file} does not name its architecture.",
            "Use a file with a model's weights.",
        )
    parts = reader.value("split.count", int) or 1
    if parts > 1:
        raise ModelError(
            f"The GGUF file {file} is one of {parts} parts.",
            "Join them by `llama-gguf-split --merge`, and name the whole file.",
        )
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    elements = Counter[str]()
    for tensor in tensors.values():
        elements[tensor.tensor_type.name] += int(tensor.n_elements)
    scaling = reader.value(f"{architecture}.rope.scaling.type", str)
    splits_like = reader.value("tokenizer.ggml.pre", str) or ""
    # rope_freqs, rope_factors_long, ..._short
    ropes = [name for name in tensors if name.startswith("rope_f")]
    freqs = tensors.get("rope_freqs.weight")
    return GgufFacts(
        architecture=architecture,
        title=reader.value("general.name", str),
        license=reader.value("general.license", str),
        stored=elements.most_common(1)[0][0] if elements else "no tensors",
        types=frozenset(elements),
        parameters=elements.total() - sum(int(tensors[name].n_elements) for name in ropes),
        context=reader.value(f"{architecture}.context_length", int),
        splits_like=splits_like if reader.value("tokenizer.ggml.model", str) == "gpt2" else None,
        rope_scaling="factors" if ropes else None if scaling == "none" else scaling,
        rope_factors=None if freqs is None else tuple(map(float, freqs.data.reshape(-1))),
    )


def check_is_gguf(file: Path) -> None:
    """Raise `ModelError` if `file` is missing or does not begin with GGUF."""
    if not file.is_file():
        raise ModelError(
            f"There is no GGUF file {str(file)!r}.",
            "Write gguf:FILE with the path of a .gguf file.",
        )
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise ModelError(
            f"The GGUF file {file} cannot be read: {error}.", "Check its permissions."
        ) from error
    if magic != _MAGIC:
        raise ModelError(
            f"{str(file)!r} is not a GGUF file: it does not begin with {_MAGIC.decode()}.",
            "Name a .gguf file of llama.cpp's; a model in another format is a folder, or hf:NAME.",
        )
