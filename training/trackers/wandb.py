"""wandb tracker: online if a key is known or WANDB_MODE selects it, else offline, to be sent by
`wandb sync`. It never prompts.

Runs of one id are one run, even if several starts have each written a folder. Their files show
which steps are held. A kill may have lost the newest ones, which wandb writes with some delay.
"""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hrm_agent.training.trackers.base import TrackedRun, Tracker
from hrm_agent.training.trackers.wandb_file import steps_in

__all__ = ["open_wandb"]

_SERVER = "https://api.wandb.ai"
_SECONDS_BETWEEN_WRITES = 1.0
_SECONDS_FOR_SERVER = 10.0
"""Maximum seconds that the end of a run waits for a server that does not answer."""
_NOT_IN_IDS = re.compile(r"[/\\#?%:\s]")


def open_wandb(run: TrackedRun) -> Tracker:
    return _Wandb(run)


class _Wandb:
    def __init__(self, run: TrackedRun) -> None:
        import wandb

        folder, id_ = run.where or run.folder, _NOT_IN_IDS.sub("-", run.id)
        folder.mkdir(parents=True, exist_ok=True)
        files = folder.glob(f"wandb/*run-*-{id_}/run-{id_}.wandb")
        self._newest = max((step for file in files for step in steps_in(file)), default=-1)
        # No data of the machine or of the code around the run is read. Only the metrics are sent.
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
            init_timeout=_SECONDS_FOR_SERVER,
            finish_timeout=_SECONDS_FOR_SERVER,
            x_transaction_log_flush_interval=_SECONDS_BETWEEN_WRITES,
        )
        self._run: Any = wandb.init(
            project=run.project,
            id=id_,
            name=run.name,
            dir=str(folder),
            config={**run.config, "run_id": run.name},
            resume="allow",
            mode=_mode(),
            settings=settings,
        )

    def newest_step(self) -> int:
        on_server = int(self._run.starting_step) - 1  # of a run that is resumed online
        return max(self._newest, on_server)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step, commit=True)

    def close(self) -> None:
        self._run.finish()


def _mode() -> Any:
    """Mode for wandb: None to follow WANDB_MODE, or if a key is known. Otherwise `offline`, since
    wandb would prompt for a key.
    """
    if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY"):
        return None
    with suppress(OSError, netrc.NetrcParseError):
        if (
            netrc.netrc().authenticators(
                re.sub(r"^\w+://", "", os.environ.get("WANDB_BASE_URL", _SERVER))
            )
            is not None
        ):
            return None
    return "offline"
