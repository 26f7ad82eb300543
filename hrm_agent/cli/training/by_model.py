"""Configuration keys whose values depend on the model. Their values are read from the run's record,
or chosen now, and reported.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hrm_agent.cli.common.output import Output, remark
from hrm_agent.config import CONFIG_FILE, build_config, read_config_file
from hrm_agent.errors import HrmError
from hrm_agent.models.loading.policy_loader import to_be_converted
from hrm_agent.models.model_facts import facts_of
from hrm_agent.models.slow_start import told_if_slow

if TYPE_CHECKING:
    from hrm_agent.training.config.commands import DemoConfig, FineTuneConfig, GrpoConfig
    from hrm_agent.training.config.fitted import Fitted

__all__ = ["fitted_demo", "fitted_rl", "fitted_sft", "say_chosen", "shown_rl", "shown_sft"]

Trained = TypeVar("Trained", bound="GrpoConfig | FineTuneConfig")


def fitted_rl(config: GrpoConfig, folder: Path | None) -> tuple[GrpoConfig, Fitted]:
    """Configuration of the run in `folder` with values chosen for the model, and a report of them.
    Raises `ModelError`.
    """
    from hrm_agent.training.config.fitted import fit_grpo
    from hrm_agent.training.config.rules import with_values

    config = _with_record(config, "train rl", folder)
    fitted = fit_grpo(config, facts_of(config.policy, adapter=config.adapter.lora_rank > 0))
    return with_values(config, fitted.values), fitted


def fitted_sft(
    config: FineTuneConfig, folder: Path | None, conversations: int | None = None
) -> tuple[FineTuneConfig, Fitted]:
    """Configuration of the run in `folder` with values chosen for the model, and a report of them.
    Raises `ModelError`, and `TaskError` for invalid data.

    `conversations`: number of conversations (None: counted in `config.data` if that is given).
    """
    from hrm_agent.training.config.fitted import fit_sft, left_open
    from hrm_agent.training.config.rules import with_values

    config = _with_record(config, "train sft", folder)
    if conversations is None and config.data and {"steps", "batch_size"} & {*left_open(config)}:
        with told_if_slow("loading torch; the first time this takes up to a minute"):
            from hrm_agent.training.sft import read_chats
        conversations = len(read_chats(Path(config.data)))
    adapter = config.adapter.lora_rank > 0
    fitted = fit_sft(
        config,
        facts_of(config.policy, adapter=adapter),
        adapter=adapter,
        conversations=conversations,
    )
    return with_values(config, fitted.values), fitted


def fitted_demo(config: DemoConfig, folder: Path) -> tuple[DemoConfig, Fitted]:
    """Configuration of the demo in `folder` with values chosen for the model, and a report of them.
    Raises `ModelError`.
    """
    from hrm_agent.models.model_facts import ModelFacts, ModelSize
    from hrm_agent.training.config.fitted import fit_grpo, with_recorded
    from hrm_agent.training.config.rules import with_values
    from hrm_agent.training.small_policy.architecture import SMALL_DEFAULTS

    path = folder / CONFIG_FILE
    train = config.train
    if path.exists():
        kept = build_config(
            type(config), read_config_file(path, "demo"), CONFIG_FILE, on_record=True
        )
        train = with_recorded(train, kept.train)
    adapter = train.adapter.lora_rank > 0
    small = ModelFacts(SMALL_DEFAULTS, ModelSize)
    facts = small if config.from_scratch else facts_of(train.policy, adapter=adapter)
    fitted = fit_grpo(train, facts)
    return config.model_copy(update={"train": with_values(train, fitted.values)}), fitted


def shown_rl(config: GrpoConfig, folder: Path | None) -> GrpoConfig:
    """Configuration for a dry run. Keys whose values cannot be chosen yet have none."""
    with suppress(HrmError):
        if not to_be_converted(config.policy):
            return fitted_rl(config, folder)[0]
    return config


def shown_sft(config: FineTuneConfig, folder: Path | None) -> FineTuneConfig:
    """Configuration for a dry run. Keys whose values cannot be chosen yet have none."""
    known = config if Path(config.data).is_file() else config.model_copy(update={"data": ""})
    with suppress(HrmError):
        if not to_be_converted(config.policy):
            return fitted_sft(known, folder)[0].model_copy(update={"data": config.data})
    return config


def say_chosen(fitted: Fitted, output: Output) -> None:
    """Report the chosen values. Warn if the learning rate is far from the usual value."""
    for line in fitted.lines:
        output.say(line)
    if fitted.warning:
        remark(fitted.warning)


def _with_record(config: Trained, command: str, folder: Path | None) -> Trained:
    from hrm_agent.training.config.fitted import with_recorded

    path = folder / CONFIG_FILE if folder is not None else None
    if path is None or not path.exists():
        return config
    return with_recorded(
        config,
        build_config(type(config), read_config_file(path, command), CONFIG_FILE, on_record=True),
    )
