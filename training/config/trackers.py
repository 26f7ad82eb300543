"""Configuration keys of trackers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict

from hrm_agent.config import ONE_BY_ONE

__all__ = ["TRACK_KEYS", "TrackSettings", "TrackerName"]

TrackerName = Literal["tensorboard", "trackio", "wandb"]


def _split(value: Any) -> Any:
    """Split `tensorboard,wandb`, alone or in a list, into unique names."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)):
        return value
    names = [part.strip() for each in cast("list[Any]", listed) for part in str(each).split(",")]
    return tuple(dict.fromkeys(name for name in names if name and name != "none"))


class TrackSettings(BaseModel):
    """Trackers of metrics, in addition to metrics.jsonl."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    track: Annotated[tuple[TrackerName, ...], BeforeValidator(_split), ONE_BY_ONE] = ()
    """Trackers that receive each row of metrics: tensorboard, trackio, wandb, joined by commas
    (empty: none).
    """
    track_project: str = "hrm-agent"
    """Project name of the run in trackio and wandb."""
    track_folder: str | None = None
    """Folder that trackers write to (none: TensorBoard and wandb into the run's folder, trackio
    where it keeps all its runs).
    """


TRACK_KEYS = frozenset(TrackSettings.model_fields)
"""Keys of trackers, which do not affect a run."""
