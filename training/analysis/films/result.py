"""Result of a film as JSON: scenes with their texts, and captions from typed facts.

A scene names its calls that are unchanged by their index in the previous scene, and has only the
tokens of the others that were not taken over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hrm_agent.answers.final_answer import own_text, stated_value
from hrm_agent.models.codec.messages import invalid_tool_calls
from hrm_agent.models.recorded_values import unpack_answer
from hrm_agent.training.analysis.films.drafts import answer_of
from hrm_agent.training.analysis.films.film import Film, Flip, Reel, Scene
from hrm_agent.training.analysis.token_sample import token_texts
from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.trajectory import Call, RunStatus, ToolCall, Trajectory

__all__ = ["film_result"]

_SHORT = 60
"""Maximum number of characters of an answer in a caption."""


def film_result(training: RecordedTraining, made: Film) -> dict[str, Any]:
    """Result of a film. `first_step` of a scene: first step, from 1, after the previous version of
    the film (None in the first version). The steps from it to `version` change the run.
    """
    return {
        "versions": made.versions,
        "tasks": [_reel(training, reel, made.versions) for reel in made.reels],
        "sampled_tokens": made.sampled_tokens,
        "checked_tokens": made.checked_tokens,
    }


def _reel(training: RecordedTraining, reel: Reel, versions: Sequence[int]) -> dict[str, Any]:
    task = reel.episode.task
    first_steps = {version: before + 1 for before, version in pairwise(versions)}
    scenes = zip([None, *reel.scenes], reel.scenes, strict=False)
    return {
        "prompt": task.prompt,
        "expected": task.answer,
        "scenes": [
            {"first_step": first_steps.get(scene.version), **_scene(training, before, scene)}
            for before, scene in scenes
        ],
    }


def _scene(training: RecordedTraining, before: Scene | None, scene: Scene) -> dict[str, Any]:
    return {
        "version": scene.version,
        "right": scene.right,
        "status": scene.run.status.value,
        "answer": short_answer(scene.run),
        "caption": _caption(before, scene),
        "flips": [_flip(training, scene, flip) for flip in scene.flips],
        "calls": [_call(training, before, scene, number) for number in range(len(scene.run.calls))],
    }


def _flip(training: RecordedTraining, scene: Scene, flip: Flip) -> dict[str, Any]:
    (old,) = token_texts(training.learner.codec, [flip.old_id])
    (new,) = token_texts(training.learner.codec, [flip.new_id])
    return {
        "call": flip.call,
        "role": scene.run.calls[flip.call].identity.role,
        "token": flip.token,
        "old": old,
        "new": new,
        "old_before": math.exp(flip.before),
        "old_now": math.exp(flip.old),
        "new_now": math.exp(flip.new),
    }


def _call(
    training: RecordedTraining, before: Scene | None, scene: Scene, number: int
) -> dict[str, Any]:
    """Call of a scene with the tool calls that it makes."""
    call = scene.run.calls[number]
    kept = scene.kept[number] if scene.kept else None
    answer = answer_of(call)
    tools = [_tool(each) for each in _tools_of(scene.run, call)]
    if before is not None and kept is not None and kept[1] == len(answer):
        old = before.run.calls[kept[0]]
        if tools == [_tool(each) for each in _tools_of(before.run, old)]:
            return {"same": kept[0]}
    texts = token_texts(training.learner.codec, answer)
    prompt = call.token_ids[: len(call.token_ids) - len(answer)]
    if not call.token_ids:  # a model without tokens
        texts = [unpack_answer(call).text]
    return {
        "role": call.identity.role,
        "prompt": "".join(token_texts(training.learner.codec, prompt)) if kept is None else None,
        "like": None if kept is None else kept[0],
        "kept": 0 if kept is None else kept[1],
        "tokens": texts[0 if kept is None else kept[1] :],
        "tools": tools,
    }


def _tools_of(run: Trajectory, call: Call) -> list[ToolCall]:
    """Tool calls that an answer asked for, in order."""
    asked = [each["id"] for each in unpack_answer(call).tool_calls]
    by_id = {each.tool_call_id: each for each in run.tool_calls}
    return [by_id[each] for each in asked if each in by_id]


def _tool(tool: ToolCall) -> dict[str, Any]:
    return {
        "name": tool.name,
        "status": tool.status.value if tool.status is not None else None,
        "content": tool.content,
    }


def short_answer(run: Trajectory) -> str | None:
    """Answer of a run in one line (None without an answer)."""
    answer = run.answer or ""
    text = " ".join((stated_value(answer) or own_text(answer)).split())
    if not text:
        return None
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


# captions


def _caption(before: Scene | None, scene: Scene) -> list[str]:
    """Sentences on a scene."""
    status = scene.run.status
    ended = [] if status is RunStatus.COMPLETED else [_ENDS.get(status, "The run has not ended.")]
    if before is None:
        return [*ended, _summary(scene)]
    sentences = ended + [_change(before, scene, flip) for flip in scene.flips[:1]]
    if len(scene.flips) > 1:
        more = len(scene.flips) - 1
        sentences.append(f"{more} further {'call changes' if more == 1 else 'calls change'}.")
    old = short_answer(before.run)
    new = short_answer(scene.run)
    if old == new:
        sentences.append(f"The answer is still {_quoted(new)}.")
    else:
        sentences.append(f"The answer is now {_quoted(new)}, before it was {_quoted(old)}.")
    if scene.right is not None:
        word = "right" if scene.right else "wrong"
        sentences.append(f"It is {'still' if scene.right == before.right else 'now'} {word}.")
    return sentences


def _summary(scene: Scene) -> str:
    called = len(scene.run.tool_calls)
    first = (
        "No tool is called."
        if not called
        else f"Tools are called {'once' if called == 1 else f'{called} times'}."
    )
    judged = (
        "" if scene.right is None else ", which is right" if scene.right else ", which is wrong"
    )
    return f"{first} The answer is {_quoted(short_answer(scene.run))}{judged}."


def _change(before: Scene, scene: Scene, flip: Flip) -> str:
    """Sentence on the call of a flip: what it does, and what it did before."""
    call = scene.run.calls[flip.call]
    place = scene.kept[flip.call]
    assert place is not None, "a flip has the same prompt as before"
    old = before.run.calls[place[0]]
    roles = {each.identity.role for each in scene.run.calls}
    who = "the policy" if len(roles) == 1 else f"the role {call.identity.role}"
    where = f"In call {flip.call + 1} {who}" if len(scene.run.calls) > 1 else who.capitalize()
    was = _actions(old)
    now = _actions(call)
    if was != now:
        return f"{where} {_verb(now)} instead of {_gerund(was)}."
    if not now:
        return f"{where} answers in other words."
    same = _arguments(old) == _arguments(call)
    return f"{where} {_verb(now)} as before, {'in other words' if same else 'with other input'}."


_ENDS = {
    RunStatus.TRUNCATED: "The run was truncated.",
    RunStatus.FAILED: "The run failed.",
    RunStatus.ABORTED: "The run was aborted.",
}
_UNREADABLE = ""
"""Name of a tool call that cannot be decoded."""


def _actions(call: Call) -> list[str]:
    """Names of the tools that an answer calls (empty if it calls none)."""
    message = unpack_answer(call)
    found = [each["name"] for each in message.tool_calls]
    return [*found, *[_UNREADABLE for _ in invalid_tool_calls(message)]]


def _arguments(call: Call) -> list[dict[str, Any]]:
    return [each["args"] for each in unpack_answer(call).tool_calls]


def _verb(actions: Sequence[str]) -> str:
    if not actions:
        return "answers"
    if _UNREADABLE in actions:
        return "writes a tool call that cannot be decoded"
    return f"calls {_listed(actions)}"


def _gerund(actions: Sequence[str]) -> str:
    if not actions:
        return "answering"
    if _UNREADABLE in actions:
        return "writing a tool call that cannot be decoded"
    return f"calling {_listed(actions)}"


def _listed(actions: Sequence[str]) -> str:
    counts = {name: actions.count(name) for name in actions}
    return " and ".join(
        name if count == 1 else f"{name} ({count} times)" for name, count in counts.items()
    )


def _quoted(text: str | None) -> str:
    if text is None:
        return "missing"
    return text if len(text.split()) == 1 else repr(text)
