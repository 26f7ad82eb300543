"""Run context and config: options of a graph beside its input.

A run is resumed, forked and replayed with its options. They are stored with its task, except
secrets and objects that cannot be stored. Of these only the names are stored, and a resume must
give them again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast, get_type_hints

from langgraph.checkpoint.base import CheckpointMetadata
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from hrm_agent.config import secret_in
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.langgraph_format import stop_of
from hrm_agent.runtime.execution.conversation import CONFIGURABLE, RECORDED, fields_of
from hrm_agent.runtime.execution.loading import Graph
from hrm_agent.store import RunStore
from hrm_agent.store.browse.state import shown_channels
from hrm_agent.trajectory import TaskRef

__all__ = [
    "CONFIGURED",
    "CONTEXT",
    "GIVEN",
    "GIVEN_CONTEXT",
    "NOT_KEPT",
    "RECURSION_LIMIT",
    "STEPS",
    "InvocationNotes",
    "OptionsOnRecord",
    "given_options",
    "has_options",
    "options_of",
    "options_on_record",
    "refuse_unkept",
    "run_context",
]

CONTEXT = "hrm_agent_context"
"""Key in the metadata of checkpoints: the run context as JSON, which LangGraph does not store and a
replay needs.
"""
CONFIGURED = "hrm_agent_configurable"
"""Key in the metadata of checkpoints: the entries of `config["configurable"]`, as JSON."""
STEPS = "hrm_agent_steps"
"""Key in the metadata of checkpoints: the invocation's `recursion_limit` (None: LangGraph's
default), and its last allowed step.
"""
GIVEN_CONTEXT = "context"
"""Key in a task's metadata: the run context that a program gave, as JSON."""
RECURSION_LIMIT = "recursion_limit"
"""Key in a task's metadata: the maximum steps that a program allowed."""
NOT_KEPT = "not_kept"
"""Key in a task's metadata: options that are not stored, as `configurable.NAME` or `context.NAME`,
each with the reason.
"""
GIVEN = (CONFIGURABLE, GIVEN_CONTEXT, RECURSION_LIMIT, NOT_KEPT)
"""Keys of a task's metadata that hold options."""
_LONGEST = 1 << 16
"""Maximum characters of JSON of a stored option."""
_OF_LANGGRAPH = ("thread_id", "assistant_id", "graph_id", "run_id", "run_attempt")
_PREFIXES_OF_LANGGRAPH = ("__", "checkpoint_", "langgraph_")


def run_context(graph: Graph, given: Mapping[str, Any], name: str) -> Any:
    """Run context in the class that the graph declares. An unknown option is an error. `name`: name
    of the graph.

    None if the graph declares none, or if nothing is given to a class with required fields.
    """
    schema = graph.context_schema
    options = fields_of(schema) if schema is not None else ()
    for option in given:
        if option not in options:
            raise ConfigError(
                f"Graph {name!r} has no option {option!r}. {nearest(option, options)}".strip(),
                f"Its options: {', '.join(options) or 'none'}.",
            )
    if schema is None:
        return None
    values = {option: _as_declared(schema, option, value) for option, value in given.items()}
    try:
        return schema(**values) if is_dataclass(schema) or issubclass(schema, BaseModel) else values
    # for example a list in place of a mapping
    except (TypeError, ValueError, AttributeError) as error:
        if not given:  # LangGraph, too, then makes no context
            return None
        said = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(
            f"An option of graph {name!r} has a value of the wrong kind: {said}."
        ) from error


def _as_declared(schema: type[Any], option: str, value: Any) -> Any:
    """Object of the declared class if `value` is the JSON form of one, else `value`."""
    reader = _readers(schema).get(option)
    if reader is None:
        return value
    try:
        made = reader.validate_python(value)
    except ValidationError:
        return value
    return value if _is_json(made) else made


@lru_cache
def _readers(schema: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """Readers of values by option. Empty for a pydantic model, which reads its values itself."""
    readers = dict[str, TypeAdapter[Any]]()
    if issubclass(schema, BaseModel):
        return readers
    try:
        hints = get_type_hints(schema)
    except NameError:  # an annotation names a class within a function
        return readers
    for option, declared in hints.items():
        try:
            readers[option] = TypeAdapter(declared)
        except PydanticUserError:
            continue
    return readers


class InvocationNotes:
    """Options of one invocation, for the metadata of its checkpoints, since each turn of a thread
    may have others.
    """

    def __init__(
        self,
        recursion_limit: int | None,
        *,
        configurable: Mapping[str, Any],
        context: Mapping[str, Any] | None,
    ) -> None:
        """`context`: fields of the run context (None: no context is given)."""
        self._facts = dict[str, Any]()
        if configurable:
            self._facts[CONFIGURED] = json.dumps(dict(configurable), default=str)
        if context is not None:
            self._facts[CONTEXT] = json.dumps(dict(context), default=str)
        self._limit = recursion_limit

    def __call__(self, metadata: CheckpointMetadata, parent: str | None) -> Mapping[str, Any]:
        """Metadata of a checkpoint. The first one shows where the invocation begins."""
        if STEPS not in self._facts and self._limit is not None:
            # If LangGraph keeps only the last checkpoint, the steps before it were not seen.
            unseen = metadata.get("source") == "loop" and parent is None
            stop = stop_of(-1 if unseen else metadata.get("step", -1), self._limit)
            # LangGraph's default has a type of its own, and is noted as None.
            self._facts[STEPS] = [self._limit if type(self._limit) is int else None, stop]
        return self._facts


class OptionsOnRecord(NamedTuple):
    """Options of a thread beside its input."""

    context: dict[str, Any] | None
    """Fields of the run context (None: none was given)."""
    configurable: dict[str, Any]
    """Entries of `config["configurable"]`."""


def options_on_record(
    store: RunStore, thread: str, task: TaskRef | None, at: str = ""
) -> OptionsOnRecord:
    """Options in force at the checkpoint `at` (empty: the newest). An edit has no options of its
    own, so that those before it apply.
    """
    found = shown_channels(store, thread, at, names=("",))
    while found is not None and not has_options(found.metadata) and found.parent_config is not None:
        before: Any = found.parent_config.get("configurable")
        found = shown_channels(store, thread, before["checkpoint_id"], names=("",))
    return options_of(found.metadata if found is not None else {}, task)


def options_of(metadata: Mapping[str, Any], task: TaskRef | None) -> OptionsOnRecord:
    """Options in the metadata of a checkpoint. If it has none, as in older records, those of
    `task`.
    """
    of_task = task.metadata if task is not None else {}
    of_program = (
        of_task.get(GIVEN_CONTEXT, {}) if task is not None and task.family == RECORDED else {}
    )
    noted = STEPS in metadata
    context = metadata.get(CONTEXT, "null" if noted else None)
    configurable = metadata.get(CONFIGURED, "{}" if noted else None)
    return OptionsOnRecord(
        dict(of_program) if context is None else json.loads(str(context)),
        (
            dict(of_task.get(CONFIGURABLE, {}))
            if configurable is None
            else json.loads(str(configurable))
        ),
    )


def has_options(metadata: Mapping[str, Any]) -> bool:
    """True for a checkpoint of an invocation. An edit has no options."""
    return STEPS in metadata or CONTEXT in metadata or metadata.get("source") == "input"


def given_options(
    graph: Graph, configurable: Mapping[str, Any], context: Any, recursion_limit: int | None
) -> dict[str, Any]:
    """Options of a program beside the input, for the metadata of the run's task; empty if there are
    none.
    """
    not_kept = dict[str, str]()
    own = {
        name: value
        for name, value in configurable.items()
        if not (name in _OF_LANGGRAPH or name.startswith(_PREFIXES_OF_LANGGRAPH))
    }
    kept: dict[str, Any] = {
        CONFIGURABLE: dict(_kept(CONFIGURABLE, own, not_kept)),
        GIVEN_CONTEXT: dict(_kept(GIVEN_CONTEXT, _fields(context), not_kept, graph)),
        RECURSION_LIMIT: recursion_limit,
        NOT_KEPT: not_kept,
    }
    return {name: value for name, value in kept.items() if value}


def _fields(context: Any) -> Mapping[str, Any]:
    if isinstance(context, Mapping):
        return cast("Mapping[str, Any]", context)
    if isinstance(context, BaseModel):
        return {name: getattr(context, name) for name in type(context).model_fields}
    if is_dataclass(context):
        return {field.name: getattr(context, field.name) for field in fields(context) if field.init}
    return {} if context is None else {type(context).__name__: context}


def _kept(
    where: str, given: Mapping[str, Any], not_kept: dict[str, str], graph: Graph | None = None
) -> Iterator[tuple[str, Any]]:
    """Options that can be stored, in JSON; the names of the others go to `not_kept`."""
    for name, value in given.items():
        form = (
            value
            if _is_json(value)
            else _as_json(name, value, graph.context_schema if graph is not None else None)
        )
        if secret_in({name: form}) is not None:
            not_kept[f"{where}.{name}"] = (
                "it is named like a secret, or holds an address with a password"
            )
        elif value is not None and form is None:
            not_kept[f"{where}.{name}"] = (
                f"an object of type {type(value).__name__} cannot be stored"
            )
        elif len(json.dumps(form)) > _LONGEST:
            not_kept[f"{where}.{name}"] = f"it is longer than {_LONGEST} characters"
        else:
            yield name, form


def _is_json(value: Any) -> bool:
    """True if JSON returns the value unchanged."""
    if isinstance(value, list) and type(value) is list:
        return all(map(_is_json, cast("list[Any]", value)))
    if isinstance(value, dict) and type(value) is dict:
        table = cast("dict[Any, Any]", value)
        return all(type(name) is str and _is_json(item) for name, item in table.items())
    return (
        value is None
        or type(value) in (str, bool, int)
        or (type(value) is float and value - value == 0)
    )


def _as_json(name: str, value: Any, schema: type[Any] | None) -> Any:
    """JSON from which the class of the context rebuilds an equal value (None if it cannot)."""
    if schema is None:
        return None
    try:
        form = to_jsonable_python(value)
        declared: Any = (
            schema.model_fields[name].annotation if issubclass(schema, BaseModel) else None
        )
        made = (
            TypeAdapter(declared) if declared is not None else _readers(schema)[name]
        ).validate_python(form)
        return form if type(made) is type(value) and made == value else None
    except (PydanticSerializationError, PydanticUserError, ValueError, TypeError, KeyError):
        return None


def refuse_unkept(task: TaskRef, thread: str, given: Mapping[str, Collection[str]]) -> None:
    """Raise `RunError` if an option of the run is neither recorded nor `given` now.

    `given`: names, by `configurable` and `context`.
    """
    for place, reason in cast("Mapping[str, str]", task.metadata.get(NOT_KEPT, {})).items():
        where, _, name = place.partition(".")
        if name not in given.get(where, ()):
            flag = "--config" if where == CONFIGURABLE else "--context"
            raise RunError(
                f"Thread {thread!r} was run with the option {name!r} in its {where}, which is not"
                f" on record: {reason}.",
                "Give the option again, or the graph would use a default: `hrm-agent resume"
                f" {thread} {flag} {name}=VALUE`.",
            )
