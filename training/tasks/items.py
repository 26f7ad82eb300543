"""Items of a user's list as tasks: each is a `Task`, a mapping, or a text that is the prompt.

| key of a mapping | |
|---|---|
| `prompt`, or `question` | the prompt as text |
| `answer` | the reference answer, a text or a number; verified as in `jsonl:` files |
| `id` | unique; by default derived from the content, so that it does not change with the order |
| `inputs` | the graph's input as a JSON object, in place of a message with the prompt |
| `metadata` | a JSON object, stored with the task; every other key goes there as well |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from types import NoneType
from typing import Any, cast

from hrm_agent.basics.unicode import find_surrogate
from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.tables import plain_text, reference_answer
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import TASK_INPUTS, content_hash

__all__ = ["DRAWN", "tasks_of_items"]

DRAWN = "drawn"
"""Key in a task's metadata for the data with which the task can be drawn again: arguments of the
list, and position in it.
"""
_RESERVED = (DRAWN, TASK_INPUTS)
_PROMPTS = ("prompt", "question")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "id": ((str,), "a text"),
    "answer": ((str, NoneType), "a text"),
    "metadata": ((dict,), "a JSON object"),
    "inputs": ((dict, NoneType), "a JSON object"),
}
"""Allowed types of a task's fields, and their description."""
_OWN = ("answer", "id", "inputs", "metadata")


def tasks_of_items(family: str, items: Iterable[Any], drawn: Mapping[str, Any]) -> list[Task]:
    """Turn items into tasks of `family`, in their order. `drawn`: arguments with which the list was
    made.

    Raises `TaskError` for an invalid item or a duplicate id.
    """
    tasks: list[Task] = []
    for place, item in enumerate(items):
        where = f"{family}, item {place}"
        match item:
            case Task():
                task = item
            case str():
                task = Task(prompt=item)
            case Mapping():
                task = _from_mapping(cast("Mapping[Any, Any]", item), where)
            case _:
                hint = "An item is a text, a mapping with a prompt, or a Task."
                raise TaskError(f"{where}: a {type(item).__name__}.", hint)
        _refuse_broken(task, where)
        origin = {**task.metadata, DRAWN: {**drawn, "place": place}}
        tasks.append(replace(task, family=family, metadata=origin))
    return _with_ids(family, tasks)


def _from_mapping(item: Mapping[Any, Any], where: str) -> Task:
    asked = next((name for name in _PROMPTS if name in item), None)
    inputs = item.get("inputs")
    if asked is None and inputs is None:
        has = ", ".join(map(str, item)) or "nothing"
        raise TaskError(
            f"{where}: it has no prompt.", f"Give it a prompt or a question; it has {has}."
        )
    metadata = item.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise TaskError(
            f"{where}: metadata is a {type(metadata).__name__}.", "It must be a JSON object."
        )
    others = {str(key): value for key, value in item.items() if key not in (asked, *_OWN)}
    answer = item.get("answer")
    reference = None if answer is None else reference_answer(plain_text(answer, f"{where}: answer"))
    if reference == "":
        raise TaskError(f"{where}: the answer is empty.", "Give one, or leave the key out.")
    if asked is not None:
        prompt = item[asked]
    else:
        match inputs:
            case {"messages": [*_, {"content": str(said)}]}:
                prompt = said
            case _:
                prompt = json.dumps(inputs, sort_keys=True, ensure_ascii=False, default=repr)
    return Task(
        prompt=prompt,
        id="" if item.get("id") is None else plain_text(item["id"], f"{where}: id"),
        verify=None if reference is None else exact_verifier(reference),
        answer=reference,
        metadata={**others, **cast("Mapping[str, Any]", metadata)},
        inputs=inputs,
    )


def _refuse_broken(task: Task, where: str) -> None:
    if not isinstance(cast("Any", task.prompt), str):
        hint = (
            'Messages go into inputs: {"inputs": {"messages": [{"role": "user", "content": ...}]}}.'
        )
        raise TaskError(f"{where}: the prompt is a {type(task.prompt).__name__}, not a text.", hint)
    if not task.prompt.strip():
        raise TaskError(f"{where}: the prompt is empty.", "Give it, or leave the item out.")
    if find_surrogate(task.prompt) is not None:
        raise TaskError(
            f"{where}: the prompt holds half a character.",
            "Both halves of a \\uD83D\\uDE00 are needed.",
        )
    for name, (kinds, what) in _KINDS.items():
        value = getattr(task, name)
        if not isinstance(value, kinds):
            raise TaskError(
                f"{where}: {name} is of type {type(value).__name__}.", f"It must be {what}."
            )
    if task.verify is not None and not callable(task.verify):
        message = f"{where}: verify is of type {type(task.verify).__name__}."
        raise TaskError(message, "It must be a function of the final text.")
    if taken := next((name for name in _RESERVED if name in task.metadata), None):
        raise TaskError(f"{where}: the key {taken!r} of metadata is reserved.", "Rename it.")
    for name, value in {
        **task.metadata,
        "id": task.id,
        "answer": task.answer,
        "inputs": task.inputs,
    }.items():
        _refuse_unstorable(name, value, where)


def _refuse_unstorable(name: str, value: Any, where: str) -> None:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{where}: {name!r} cannot be stored as JSON: {error}."
        raise TaskError(
            message, "Give texts, numbers, lists and mappings, or leave it out."
        ) from error
    if find_surrogate(text) is not None:
        raise TaskError(
            f"{where}: {name!r} holds half a character.", "Leave it out, or replace it."
        )


def _with_ids(family: str, tasks: Sequence[Task]) -> list[Task]:
    """Give tasks without an id an id that is derived from the content. Of two equal tasks, the id
    of the second ends with `-2`. Raises `TaskError` for a duplicate id.
    """
    given = Counter(task.id for task in tasks if task.id)
    for name, times in given.most_common(1):
        if times > 1:
            places = ", ".join(str(n) for n, task in enumerate(tasks) if task.id == name)
            raise TaskError(
                f"{family}: the id {name!r} stands at items {places}.",
                "Make it unique, or leave ids out.",
            )
    taken = set(given)
    found: list[Task] = []
    for task in tasks:
        own = content_hash("task", task.prompt, task.answer or "", task.inputs)[:12]
        names = chain([own], (f"{own}-{number}" for number in count(2)))
        name = next(each for each in names if each not in taken)
        taken.add(name)
        found.append(task if task.id else replace(task, id=name))
    return found
