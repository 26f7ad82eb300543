"""Rules on configuration keys: which keys act only together with others, and combinations that are
refused.

Each union names the keys of its kinds, such as `dual_clip` of the objective `clipped`. A key has no
effect in a kind that does not name it, and is refused in a configuration of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hrm_agent.config import is_own
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.training.config.parts import (
    AdapterPart,
    EnginesPart,
    FamilyPart,
    LossPart,
    OptimPart,
    RolloutPart,
    SelectPart,
    own_defaults,
)

__all__ = [
    "QUOTA_KEYS",
    "UNIONS",
    "KeyUnion",
    "ratio_moves",
    "refuse_families",
    "refuse_other_families",
    "refuse_teacher",
    "refuse_uncorrected",
    "refuse_with_forks",
    "refuse_with_ranks",
    "with_acting_keys",
    "with_values",
]

Config = TypeVar("Config", bound=BaseModel)
Keys = Mapping[str, Any]
"""Keys of a configuration with their values, without tables."""

QUOTA_KEYS = ("min_positives", "min_negatives")


class KeyUnion(NamedTuple):
    """Union of keys, discriminated by a kind."""

    kind: str | Callable[[Keys], object]
    """Key whose value is the kind, or a function that returns the kind."""
    keys: Mapping[Any, tuple[str, ...]]
    """Kind -> its keys. A key has no effect in a kind that does not list it. The kinds True and
    False stand for a value that is set or not.
    """
    why: str
    """Reason why a key has no effect. {kind} stands for the kind."""
    hint: str = ""
    """Hint for the user (empty: the hint is to leave the key out)."""


def ratio_moves(keys: Keys) -> bool:
    """True if the probability ratio of a token may differ from 1."""
    several = keys["epochs"] * keys["mini_batches"] > 1
    return several or keys["old_logprobs"] == "engine" or bool(keys["source"])


UNIONS = (
    KeyUnion(
        "source",
        {
            False: (
                *("engine", "stages", "refill", "engine_difference_limit"),
                *("mastered_after", "eval_every", "draw"),
                *("fork_share", "forks_of_moment", "fork_at"),
            )
        },
        "with --from: no problem is drawn, and nothing is sampled",
    ),
    KeyUnion(
        "engine",
        {"vllm": tuple(key for key in EnginesPart.model_fields if key != "engine")},
        "here: no server samples",
        "Set engine to vllm.",
    ),
    KeyUnion(
        lambda keys: not keys["servers"] or keys["server_count"] > 0,
        {True: ("server_python", "server_options")},
        "here: no server is started, since some are named",
        "Set server_count.",
    ),
    KeyUnion(
        "weights_by",
        {"file": ("weights_folder",), "collective": ("weights_address",)},
        "here: weights_by is {kind}",
    ),
    KeyUnion("draw", {"learnability": ("draw_decay",)}, "here: tasks are drawn in order, not by p"),
    KeyUnion(
        "algorithm",
        dict.fromkeys(("grpo-random", "grpo-roc", "grpo-roc-random"), ("oversampling",)),
        "here: grpo samples G rollouts and trains on all of them",
    ),
    KeyUnion(
        "algorithm",
        {
            "grpo-roc": (*QUOTA_KEYS, "selection", "penalty_eps", "penalties"),
            "grpo-roc-random": QUOTA_KEYS,
        },
        "here: only grpo-roc selects by it, and the algorithm is {kind}",
    ),
    KeyUnion(
        "selection",
        {"inverse": ("penalty_eps",)},
        "here: selection = lowest does not invert penalties",
    ),
    KeyUnion(
        "advantages",
        dict.fromkeys(("grpo", "reinforce_plus_plus"), ("advantage_eps",)),
        "here: {kind} divides by no deviation",
    ),
    KeyUnion(
        "credit",
        {
            "per_turn": ("turn_weight", "turn_discount", "turn_baseline"),
            "forks": ("fork_share", "forks_of_moment", "fork_at"),
        },
        "here: the credit is {kind}",
    ),
    KeyUnion(
        "objective",
        {
            "clipped": ("clip_low", "clip_high", "dual_clip"),
            "cispo": ("clip_high",),
            "gspo": ("clip_low", "clip_high"),
        },
        "here: the objective is {kind}",
    ),
    KeyUnion(
        lambda keys: ratio_moves(keys) or is_own(keys["objective"]),
        {True: ("clip_low", "clip_high", "dual_clip")},
        "here: each batch is trained on once, so the ratio is 1 and nothing is clipped",
    ),
    KeyUnion(
        lambda keys: keys["aggregation"] or own_defaults(keys["objective"]).aggregation,
        {"constant": ("constant",)},
        "here: the aggregation is {kind}",
    ),
    KeyUnion(
        "teacher",
        {True: ("teacher_coef", "outcome_coef", "teacher_prompt")},
        "here: teacher is not set",
        "Name one with teacher.",
    ),
    KeyUnion(
        "old_logprobs",
        {"trainer": ("correction",)},
        "here: with old_logprobs engine the ratio already has the engine's log-probs",
        "Take old_logprobs trainer, or leave correction out.",
    ),
    KeyUnion(
        "correction",
        dict.fromkeys(("token", "sequence"), ("correction_cap", "correction_mode")),
        "here: nothing is corrected without correction",
    ),
    KeyUnion(
        "versions_behind",
        {True: ("on_publish",)},
        "here: without versions_behind no reply is in progress when weights are published",
    ),
    KeyUnion(
        lambda keys: keys["group_quorum"] < 1,
        {True: ("group_deadline", "carry_over")},
        "here: without group_quorum a step waits for all rollouts",
    ),
    KeyUnion(
        lambda keys: keys["versions_behind"] or keys["carry_over"] or keys["source"],
        {True: ("max_staleness",)},
        "here: all tokens of a step were sampled with its weights",
    ),
    KeyUnion(
        "eval_every",
        {True: ("patience", "eval_problems")},
        "here: nothing is evaluated without eval_every",
    ),
    KeyUnion(
        "cooldown",
        {True: ("fall", "least_rate")},
        "here: without cooldown the learning rate does not fall",
    ),
    KeyUnion(
        "lora_rank",
        {True: ("lora_alpha", "lora_dropout", "lora_targets", "lora_roles")},
        "here: there is no adapter",
        "Set lora_rank, 8 for example.",
    ),
    KeyUnion(
        "source",
        {True: ("by", "reward", "roles")},
        "here: no runs on record are learned from",
        "Name the record: --from STORE.",
    ),
    KeyUnion("optimizer", {"muon": ("matrix_learning_rate",)}, "here: the optimizer is {kind}"),
)
"""Unions of the keys of all configurations."""


def with_acting_keys(config: Config, *, on_record: bool) -> Config:
    """Return the configuration if every key that differs from its default has an effect.

    Raises `ConfigError` for a key without effect. If the configuration is `on_record`, such a key
    gets its default instead, since earlier versions accepted it.
    """
    keys: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            fields = type(value).model_fields
            keys |= {key: getattr(value, key) for key in fields}
            defaults |= {key: _default(inner) for key, inner in fields.items()}
        else:
            keys[name] = value
            defaults[name] = _default(field)
    idle: dict[str, Any] = {}
    for union in UNIONS:
        listed = keys.keys() & set(chain.from_iterable(union.keys.values()))
        if not listed:
            continue
        kind = keys[union.kind] if isinstance(union.kind, str) else union.kind(keys)
        if union.keys.keys() <= {True, False}:
            kind = bool(kind)
        kinds = {kind, *_kinds_of_families(union.kind, keys)}
        acting = set(chain.from_iterable(union.keys.get(each, ()) for each in kinds))
        if is_own(kind) and union.kind != "credit":  # a user's function is given all options
            continue
        for key in sorted(listed - acting):
            own = getattr(own_defaults(keys.get("objective", "")), key, None)
            if keys[key] in (defaults[key], own):
                continue
            if not on_record:
                usual = own if defaults[key] is None else defaults[key]
                left = (
                    "Leave it out."
                    if usual in (None, (), "", {})
                    else f"Leave it out, or at {usual}."
                )
                raise ConfigError(
                    f"{key} has no effect {union.why.format(kind=kind)}.", union.hint or left
                )
            keys[key] = idle[key] = defaults[key]
    return with_values(config, idle)


def _kinds_of_families(key: str | Callable[[Keys], object], keys: Keys) -> list[object]:
    """Values of a key that families of tasks have in place of the whole training's."""
    families = keys.get("families", ()) if isinstance(key, str) else ()
    own = [getattr(each, str(key), None) for each in families]
    return [value for value in own if value is not None]


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True, validated_data={})


def with_values(config: Config, values: Keys) -> Config:
    """Return the configuration with `values`, each in the table of its key. The values are not
    checked.
    """
    own = {key: value for key, value in values.items() if key in type(config).model_fields}
    for name in type(config).model_fields:
        part = getattr(config, name)
        if isinstance(part, BaseModel):
            within = {key: value for key, value in values.items() if key in type(part).model_fields}
            own |= {name: part.model_copy(update=within)} if within else {}
    return config.model_copy(update=own) if own else config


def refuse_uncorrected(rollout: RolloutPart, loss: LossPart, samples: int) -> None:
    """Raise `ConfigError` if older weights sample without a correction, or if one of `samples`
    rollouts is a quorum.
    """
    behind = rollout.versions_behind
    share = rollout.group_quorum
    older = f"versions_behind = {behind}" if behind else "carry_over" if rollout.carry_over else ""
    if older and loss.correction == "none" and loss.old_logprobs != "engine":
        raise ConfigError(
            f"{older} trains on tokens of older weights, but nothing corrects for that.",
            "Set correction = token, which weighs each token by the ratio of its probabilities,"
            " or old_logprobs = engine.",
        )
    if share < 1 and share * samples <= 1:
        raise ConfigError(
            f"group_quorum = {share:g} is one of {samples} rollouts, and one alone teaches"
            " nothing.",
            f"Set it above {1 / samples:g}.",
        )


def refuse_teacher(
    loss: LossPart,
    families: Sequence[FamilyPart],
    engines: EnginesPart,
    temperature: float,
    sharding: str,
) -> None:
    """Raise `ConfigError` for teachers that cannot teach this policy."""
    named = [each.teacher for each in families if each.teacher is not None]
    if named and loss.teacher is None:
        raise ConfigError(
            f"{named[0]} is to teach one family, but teacher is not set for the others.",
            "Name one with teacher.",
        )
    if loss.teacher_prompt is not None and "{answer}" not in loss.teacher_prompt:
        raise ConfigError(
            f"teacher_prompt = {loss.teacher_prompt!r} does not have {{answer}} in it.",
            "Write {answer} where the reference answer of the task is to stand.",
        )
    names = {loss.teacher or "", *named}
    here = [each for each in names if not each.startswith("vllm:")]
    if sharding == "fsdp2" and here and len(names) > 1:
        raise ConfigError(
            "sharding = fsdp2 does not go with several teachers, one of them of this machine, since"
            " all ranks have to ask it together.",
            "Take one teacher, servers alone (vllm:URL), or sharding ddp.",
        )
    for teacher in (each for each in sorted(names) if each.startswith("vllm:")):
        if temperature != 1:
            raise ConfigError(
                f"teacher = {teacher} does not go with temperature = {temperature:g}: a server"
                " returns log-probs at temperature 1.",
                "Sample at temperature 1, or take a teacher of this machine.",
            )
        if teacher.partition("?")[0] in {each.partition("?")[0] for each in engines.servers}:
            raise ConfigError(
                f"{teacher} is to teach, and is one of the servers that get the trained weights.",
                "Take another server for the teacher.",
            )


def refuse_families(
    families: Sequence[FamilyPart], select: SelectPart, loss: LossPart, *, on_record: bool
) -> None:
    """Raise `ConfigError` for settings of families that contradict each other or the training."""
    if families and on_record:
        raise ConfigError(
            "families does not go with --from: what is on record has been run and scored.",
            "Leave families out.",
        )
    names = [each.name for each in families]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"families has {name!r} twice.", "Put its settings in one table.")
    for family in families:
        other = family.algorithm not in (None, select.algorithm)
        if other and (loss.credit == "forks" or is_own(select.algorithm)):
            what = "credit = forks" if loss.credit == "forks" else f"algorithm = {select.algorithm}"
            raise ConfigError(
                f"{what} does not go with algorithm = {family.algorithm} of family {family.name!r}.",
                "Leave the algorithm of the family out.",
            )


def refuse_other_families(named: Iterable[str], families: Iterable[str]) -> None:
    """Raise `ConfigError` if one of the families that are `named` has no tasks."""
    known = sorted(set(families))
    for family in named:
        if family not in known:
            near = nearest(family, known)
            raise ConfigError(
                f"families names {family!r}, but no task of this training is of it. {near}".strip(),
                f"The tasks are of {', '.join(known)}.",
            )


def refuse_with_forks(
    rollout: RolloutPart, select: SelectPart, loss: LossPart, samples: int
) -> None:
    """Raise `ConfigError` for settings that the credit `forks` does not support, with `samples`
    rollouts of a prompt.
    """
    forks = round(loss.fork_share * samples)
    for unfit, what, hint in (
        (
            select.algorithm != "grpo",
            f"algorithm = {select.algorithm}",
            "Take algorithm = grpo: a moment is valued by all rollouts that went on from it.",
        ),
        (
            loss.advantages not in ("grpo", "dr_grpo"),
            f"advantages = {loss.advantages}",
            "Take advantages = dr_grpo or grpo.",
        ),
        (rollout.group_quorum < 1, "group_quorum", "Leave it out."),
        (
            rollout.versions_behind > 0,
            "versions_behind",
            "Leave it out: forks have the weights of their origin.",
        ),
        (
            rollout.share_memory,
            "share_memory",
            "Leave it out: a fork has the memory of its moment.",
        ),
        (
            forks > samples - 2,
            f"fork_share = {loss.fork_share:g} of {samples} rollouts of a prompt",
            "At least two begin with the task: take a larger group_size, or a smaller fork_share.",
        ),
        (
            loss.forks_of_moment > max(forks, 2),
            f"forks_of_moment = {loss.forks_of_moment}, where a prompt has {forks} forks",
            "Take a smaller one, or a larger group_size.",
        ),
    ):
        if loss.credit == "forks" and unfit:
            raise ConfigError(f"credit = forks does not go with {what}.", hint)


def refuse_with_ranks(
    rollout: RolloutPart, optim: OptimPart, adapter: AdapterPart, *, on_record: bool
) -> None:
    """Raise `ConfigError` for settings that joint training by several processes does
    not support.
    """
    whole = "whole weights on each process: take ddp" if optim.sharding == "fsdp2" else ""
    for given, what, hint in (
        (on_record, "--from", "Learn from what is on record in one process."),
        (rollout.processes > 1, "processes", "Each rank runs graphs already: start more ranks."),
        (rollout.ray, "ray", "Each rank runs graphs already: start more ranks."),
        (
            rollout.versions_behind > 0,
            "versions_behind",
            "Leave it out: with several ranks no rollouts run ahead.",
        ),
        (
            rollout.carry_over,
            "carry_over",
            "Leave it out: rollouts that a rank has cut off stay on record.",
        ),
        (whole and adapter.lora_rank > 0, "lora_rank", f"An adapter needs {whole}."),
        (
            whole and optim.optimizer == "adamw8bit",
            "optimizer = adamw8bit",
            f"8 bits need {whole}.",
        ),
    ):
        if optim.sharding != "none" and given:
            raise ConfigError(f"sharding = {optim.sharding} does not go with {what}.", hint)
