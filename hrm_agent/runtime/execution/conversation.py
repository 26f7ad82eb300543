"""Messages of a person on a thread, in the form of a graph's input: the task, and the turns after
it.

A turn is recorded before the graph receives it, by the id of its message. Checkpoints show whether
the graph has read it: LangGraph writes a checkpoint of source `input` for each input. All turns
that no checkpoint shows are passed on, whether they are new or a killed process had not reached
them.

A turn may follow any outcome of the one before. A turn that was cut short leaves work that
LangGraph drops at the next input. Its open entries in the record are closed here: tool calls
without an outcome get one, and calls that the model requested get an answer in the state, since
providers refuse a conversation in which one is missing.

LangGraph makes objects of a state that is itself a pydantic model. In a state that is a typed dict
or a dataclass, a field that is declared as a pydantic model or a dataclass, or as a list, a mapping
or a union of these, would reach the nodes as plain dicts. So this module makes objects of the
declared classes from input in JSON.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from functools import lru_cache
from itertools import takewhile
from typing import Any, cast, get_args, get_origin, get_type_hints

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel import Pregel
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.langgraph_format import ROOT, START
from hrm_agent.models import invalid_tool_calls
from hrm_agent.tools.session_variables import MAX_DATA_BYTES, refuse_large
from hrm_agent.trajectory import (
    TASK_INPUTS,
    Journal,
    RunStatus,
    StopReason,
    TaskRef,
    ToolStatus,
    Trajectory,
    Turn,
    TurnEnd,
    content_hash,
)
from hrm_agent.trajectory.words import REASONING

__all__ = [
    "ABORTED",
    "ANSWER_PATH",
    "CHECKPOINTER",
    "CONFIGURABLE",
    "DATA",
    "HISTORY",
    "RECORDED",
    "TEXT_INPUTS",
    "close_tool_calls",
    "fields_of",
    "first_input",
    "kept_elsewhere",
    "last_answer",
    "reopened",
    "takes_turns",
    "texts_of_task",
    "turn_input",
    "turns_not_read",
    "typed_input",
    "with_turn",
]


def typed_input(schema: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an input, with objects where classes are declared. `schema`: class of the graph's
    input (None if it has none).

    Raises `ConfigError` for a value that does not have its field's type.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        # LangGraph would report an invalid input only during the run. Fields may be missing, since
        # a node may set them.
        try:
            schema.model_validate(dict(fields))
        except ValidationError as error:
            wrong = [each for each in error.errors(include_url=False) if each["type"] != "missing"]
            if wrong:
                raise _refused(wrong[0]) from error
        return dict(fields)
    readers = _readers(schema) if schema is not None else {}
    return {
        name: _read(readers[name], name, value) if name in readers else value
        for name, value in fields.items()
    }


@lru_cache
def _readers(schema: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """Readers by field, for fields that hold objects."""
    readers = dict[str, TypeAdapter[Any]]()
    for name, declared in get_type_hints(schema).items():
        if _holds_objects(declared):
            try:
                readers[name] = TypeAdapter(declared)
            # a class that pydantic does not know: the value is unchanged
            except PydanticUserError:
                continue
    return readers


def _holds_objects(declared: Any) -> bool:
    """True if a field holds objects. Messages do not count, since their reducer reads them by type
    name.
    """
    if isinstance(declared, type) and issubclass(declared, BaseMessage):
        return False
    own = isinstance(declared, type) and (issubclass(declared, BaseModel) or is_dataclass(declared))
    return own or any(map(_holds_objects, get_args(declared)))


def _read(reader: TypeAdapter[Any], name: str, value: Any) -> Any:
    try:
        return reader.validate_python(value)
    except ValidationError as error:
        raise _refused(error.errors(include_url=False)[0], name) from error


def _refused(first: Any, *before: str) -> ConfigError:
    place = ".".join(str(part) for part in (*before, *first["loc"]))
    shown = repr(first["input"])
    given = (
        ""
        if first["type"] == "missing"
        else f", not {shown if len(shown) <= 80 else f'{shown[:80]}...'}"
    )
    return ConfigError(
        f"The field {place or 'input'!r} of the graph's input is invalid: {first['msg']}{given}.",
        "Give a value of the type that the graph's state declares.",
    )


HISTORY = "history"
"""Key in a task's metadata: the turns before the task, each as `{"role": "user" or "assistant",
"content": text}`, for graphs whose input has messages. Thoughts of an answer are its
`reasoning_content`.
"""
DATA = "data"
"""Key in a task's metadata: JSON data for code, in graphs whose state has `variables`. The data
never contains the answer.
"""
CONFIGURABLE = "configurable"
"""Key in a task's metadata: the graph's `config["configurable"]`."""
ANSWER_PATH = "answer_path"
"""Key in a task's metadata: path of the answer in the final state
(`hrm_agent.runtime.execution.answer_path`).
"""
RECORDED = "recorded"
"""Family of tasks that a recorded program set, and no command."""
CHECKPOINTER = "checkpointer"
"""Key in the metadata of a recorded task: class name of the program's own checkpointer, if that
holds the thread; missing if the store holds it.
"""
ABORTED = TurnEnd(status=RunStatus.ABORTED, stop_reason=StopReason.ABORTED)
_SAID = {"user": HumanMessage, "assistant": AIMessage}
TEXT_INPUTS = ("problem", "question", "task", "input")
"""Names under which the input of a graph without messages may hold the task as text."""
_CUT_SHORT = "Not run: the turn was stopped before."

Graph = Pregel[Any, Any, Any, Any]


def first_input(graph: Graph, task: TaskRef, thread_id: str) -> Any:
    """Task in the form of the graph's input. Raises `ConfigError` if the input has no place for
    it.
    """
    places = _input_fields(graph)
    asked = HumanMessage(task.prompt, id=_task_id(thread_id))
    if TASK_INPUTS in task.metadata:
        whole = _given_input(task.metadata[TASK_INPUTS], places, thread_id)
        fields = isinstance(whole, Mapping) and not {ROOT, START} & {*places}
        return (
            typed_input(_input_schema(graph), cast("Mapping[str, Any]", whole)) if fields else whole
        )
    if START in places:  # a functional workflow, whose input is the one value of its function
        taken = getattr(graph.channels[START], "ValueType", Any)
        if taken is str:
            return task.prompt
        if get_origin(taken) is list or taken is list:
            return [asked]
        places = fields_of(taken) if isinstance(taken, type) else ()
        # For a bare `dict`, or without a declaration, the input gets both usual names.
        if not places:
            return {"messages": [asked], "input": task.prompt}
    if "messages" in places:
        before = [_said(turn) for turn in task.metadata.get(HISTORY, ())]
        given: dict[str, Any] = {"messages": [*before, asked]}
        return given | (_variables(task) if "variables" in places else {})
    name = next((name for name in TEXT_INPUTS if name in places), None)
    if name is None:
        raise ConfigError(
            f"The graph's input has none of messages, {', '.join(TEXT_INPUTS)}: there is no place"
            " for the task.",
            "Give the input as JSON, `--input '{\"name\": ...}'`, or add `messages: Annotated[list,"
            " add_messages]` to its state.",
        )
    return {name: task.prompt}


def texts_of_task(task: TaskRef, turns: Iterable[str] = ()) -> list[str]:
    """Texts that the user gave to a run: the task, its input and the messages of later turns."""
    found = [task.prompt, *turns]
    left = [task.metadata.get(name) for name in (TASK_INPUTS, HISTORY)]
    while left:
        value: Any = left.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            left += cast("Mapping[Any, Any]", value).values()
        elif isinstance(value, (list, tuple)):
            left += cast("Sequence[Any]", value)
    return found


def _said(turn: Mapping[str, str]) -> BaseMessage:
    thoughts = {REASONING: turn[REASONING]} if REASONING in turn else {}
    return _SAID[turn["role"]](turn["content"], additional_kwargs=thoughts)


def _variables(task: TaskRef) -> dict[str, Any]:
    """Data of a task, for graphs whose state has `variables`. Raises `ConfigError` if it is too
    large.
    """
    if DATA not in task.metadata:
        return {}
    variables = {DATA: task.metadata[DATA]}
    refuse_large(variables, MAX_DATA_BYTES)
    return {"variables": variables}


def _given_input(given: Any, places: Sequence[str], thread_id: str) -> Any:
    """Check a given input, and give its messages ids. LangGraph ignores an unknown field; here it
    is an error.
    """
    # a functional workflow, or a state that is one value, takes anything
    if START in places or ROOT in places:
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"The graph's input must be an object with fields, not {type(given).__name__}.",
            f"Write --input '{{\"FIELD\": ...}}'. Its fields: {', '.join(places) or 'none'}.",
        )
    fields = dict(cast("Mapping[str, Any]", given))
    for name in fields:
        if name not in places:
            raise ConfigError(
                f"The graph's input has no field {name!r}. {nearest(name, places)}".strip(),
                f"Its fields: {', '.join(places) or 'none'}.",
            )
    if isinstance(fields.get("messages"), list):
        messages = convert_to_messages(fields["messages"])
        ids = (content_hash("input", thread_id, place) for place in range(1, len(messages) + 1))
        named = [
            m if m.id else m.model_copy(update={"id": own})
            for m, own in zip(messages, ids, strict=True)
        ]
        human = [
            number for number, message in enumerate(messages) if isinstance(message, HumanMessage)
        ]
        for number in human[-1:]:
            named[number] = messages[number].model_copy(update={"id": _task_id(thread_id)})
        fields["messages"] = named
    return fields


def takes_turns(graph: Graph) -> bool:
    """True if the graph's input has a place for later turns."""
    return "messages" in _input_fields(graph)


def with_turn(record: Trajectory, prompt: str, before: TurnEnd) -> Trajectory:
    """Record with a further turn, running again. `before`: end of the newest turn."""
    number = len(record.turns) + 1
    turn = Turn(
        id=content_hash("turn", record.thread_id, number),
        prompt=prompt,
        before=before,
        started_at=time.time(),
    )
    return reopened(record).model_copy(update={"turns": (*record.turns, turn)})


def reopened(record: Trajectory) -> Trajectory:
    """Record of an ended run, running again."""
    again: dict[str, Any] = {
        "status": RunStatus.RUNNING,
        "stop_reason": None,
        "answer": None,
        "error": None,
    }
    again |= {"ended_at": None, "rewards": {}, "rewards_by_call": {}}
    return record.model_copy(update=again)


def close_tool_calls(journal: Journal, record: Trajectory) -> None:
    """Give an outcome to open tool calls, since their step is not resumed."""
    for call in record.own_tool_calls:
        if call.status is None:
            ended = {"status": ToolStatus.INFRASTRUCTURE, "content": _CUT_SHORT}
            journal.write_tool_call(call.model_copy(update=ended))


def kept_elsewhere(record: Trajectory | None) -> RunError | None:
    """Error for a thread whose checkpoints are only in its program's own checkpointer (None for any
    other).
    """
    own = record.task.metadata.get(CHECKPOINTER) if record is not None else None
    if record is None or own is None:
        return None
    return RunError(
        f"Thread {record.thread_id!r} has recorded calls, but no checkpoint. Its program keeps"
        f" checkpoints in a checkpointer of its own, {own}. Either an earlier version of hrm-agent"
        " recorded the program, or the states could not be stored, as the program's log tells.",
        "Continue the thread in the program, recorded with this version. Then it can be resumed,"
        " replayed and forked.",
    )


async def turns_not_read(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig, turns: Sequence[Turn]
) -> Sequence[Turn]:
    """Newest turns that the graph has not read yet."""
    if not turns:
        return ()
    outermost: RunnableConfig = {
        "configurable": {**config.get("configurable", {}), "checkpoint_ns": ""}
    }
    async for found in saver.alist(outermost, filter={"source": "input"}, limit=1):
        read = next((i for i, turn in enumerate(turns) if turn.id == _read_by(found)), None)
        if read is not None:
            return turns[read + 1 :]
        # the task, or another program's input
        given_at = datetime.fromisoformat(found.checkpoint["ts"]).timestamp()
        return [turn for turn in turns if turn.started_at > given_at]
    return turns


def turn_input(turns: Sequence[Turn], state: Mapping[str, Any]) -> dict[str, Any]:
    """Input for a graph with the state `state`: the turns, after answers to calls that were not
    run.
    """
    messages = cast("Sequence[Any]", state.get("messages") or ())
    return {
        "messages": [
            *_unanswered(messages),
            *(HumanMessage(turn.prompt, id=turn.id) for turn in turns),
        ]
    }


def last_answer(messages: Sequence[Any], thread_id: str, turns: Sequence[Turn]) -> str | None:
    """Model's last text in the newest turn (None if there is none). Texts of earlier turns do not
    count.
    """
    said = {_task_id(thread_id), *(turn.id for turn in turns)}
    since = takewhile(lambda message: getattr(message, "id", None) not in said, reversed(messages))
    return next((message.text for message in since if isinstance(message, AIMessage)), None)


def _unanswered(messages: Sequence[Any]) -> Iterator[ToolMessage]:
    """Answers to the open calls of the last AI message, if only results follow it."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
            continue
        if isinstance(message, AIMessage):
            for call in (*message.tool_calls, *invalid_tool_calls(message)):
                if call["id"] and call["id"] not in answered:
                    name = call["name"] or "unknown"
                    own = content_hash("cut short", message.id, call["id"])
                    yield ToolMessage(
                        _CUT_SHORT, id=own, name=name, tool_call_id=call["id"], status="error"
                    )
        return


def _task_id(thread_id: str) -> str:
    """Id of the message that holds the task."""
    return content_hash("input", thread_id)


def _read_by(found: CheckpointTuple) -> str | None:
    """Id of the last message of the input that a checkpoint holds."""
    given: Any = found.checkpoint["channel_values"].get(START)
    messages = (
        cast("Mapping[str, Any]", given).get("messages") if isinstance(given, Mapping) else None
    )
    last: Any = cast("list[Any]", messages)[-1] if isinstance(messages, list) and messages else None
    return last.id if isinstance(last, BaseMessage) else None


@lru_cache
def _input_fields(graph: Graph) -> tuple[str, ...]:
    """Field names of the graph's input schema, else the names of its channels. `ROOT` alone for a
    state that is one value.
    """
    if ROOT in graph.channels:
        return (ROOT,)
    schema = _input_schema(graph)
    return fields_of(schema) if schema is not None else tuple(graph.channels)


def _input_schema(graph: Graph) -> Any:
    return getattr(getattr(graph, "builder", None), "input_schema", None)


@lru_cache
def fields_of(schema: type[Any]) -> tuple[str, ...]:
    """Field names of a dataclass, a pydantic model or a typed dict."""
    return tuple(getattr(schema, "model_fields", None) or get_type_hints(schema))
