"""Behaviours of a policy: the tokens of texts after those of their context."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from hrm_agent.errors import ConfigError, ModelError, RunError, nearest
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.model_inspection import longest_conversation
from hrm_agent.runtime.episode import Episode
from hrm_agent.training.analysis.films.drafts import answer_of, requests_of
from hrm_agent.training.analysis.films.film import film
from hrm_agent.training.analysis.token_sample import token_texts
from hrm_agent.training.analysis.why import Behaviour
from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.training.rollout.rollout import group_episodes, open_run
from hrm_agent.training.tasks import Task
from hrm_agent.trajectory import Call, Trajectory
from hrm_agent.trajectory.forest import path_to

__all__ = ["answer_to", "flip_of", "tool_called", "turn_of"]

_ANSWERS, _BEGINNINGS = 256, 16
"""Maximum number of recorded answers that are searched for calls of a tool, and of their beginnings
whose probabilities are added.
"""


async def answer_to(training: RecordedTraining, prompt: str, text: str) -> Behaviour:
    """Behaviour: the first answer to the task `prompt` begins with `text`.

    The context is the first prompt of the newest recorded run of the task. Without such a run, the
    loaded policy runs the task.
    """
    # stages may have different prompts, so the newest run is taken
    runs = _recorded(training, prompt, 1, requests=False) or await _asked(training, prompt, 1)
    call = _first_calls(training, runs)[0]
    context = call.token_ids[: _sampled_from(call)]
    codec: Any = training.learner.codec
    return _behaviour(training, call, context, codec.encode_text(text))


async def tool_called(training: RecordedTraining, prompt: str, name: str) -> Behaviour:
    """Behaviour: the first answer to the task `prompt` calls the tool `name`.

    Each recorded first answer that does so has a beginning up to the tool's name. The texts are the
    most frequent of these beginnings. An answer can begin with one of them only, so the sum of their
    probabilities is a lower bound of the probability of a call. Without a recorded run of the task,
    the policy after the newest kept step runs the task as often as the rollouts of a group.
    """
    runs = _recorded(training, prompt, _ANSWERS, requests=True)
    if not runs:
        training.load(training.kept[-1])
        runs = await _asked(training, prompt, training.config.rollout.group_size)
    calls = _first_calls(training, runs)
    newest = calls[0]
    tools = newest.tools or ()
    _refuse_unknown(name, [str(each["function"]["name"]) for each in tools])
    context = newest.token_ids[: _sampled_from(newest)]
    beginnings = Counter[tuple[int, ...]]()
    for call in calls:
        first = _sampled_from(call)
        if call.token_ids[:first] == context:
            answer = call.token_ids[first:]
            length = _up_to_name(training, answer, name, tools)
            beginnings.update([answer[:length]] if length is not None else [])
    if not beginnings:
        raise RunError(
            f"None of the {len(calls)} known first answers to this task calls the tool {name!r}.",
            "Write the beginning of such an answer: --says TEXT.",
        )
    texts = [text for text, _ in beginnings.most_common(_BEGINNINGS)]
    found = _behaviour(training, newest, context, texts[0])
    return replace(found, others=tuple((*context, *text) for text in texts[1:]))


def _refuse_unknown(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"The first call of the policy for this task offers no tool {name!r}."
            f" {nearest(name, known)}".strip(),
            f"It offers: {', '.join(known)}." if known else "It offers no tools.",
        )


def _up_to_name(
    training: RecordedTraining, answer: Sequence[int], name: str, tools: Sequence[dict[str, Any]]
) -> int | None:
    """Number of an answer's tokens up to the name in its first call of the tool `name` (None if it
    does not call the tool). The answer may contain the name before the call, too. So the name of the
    call is the first occurrence whose replacement changes the parsed calls.
    """
    codec = training.learner.codec
    whole = answer[:-1] if answer and answer[-1] in codec.ends else answer
    pieces = token_texts(codec, whole)
    text = "".join(pieces)

    def called(text: str) -> list[str]:
        both = (codec.parse(text, tools, thinks=thinks).tool_calls for thinks in (True, False))
        return [str(each["name"]) for each in next(filter(None, both), [])]

    names = called(text)
    at = text.find(name) if name in names else -1
    while at >= 0:
        end = at + len(name)
        if called(f"{text[:at]}x{text[at:]}") != names:
            lengths = accumulate(map(len, pieces))
            return next(number for number, length in enumerate(lengths, 1) if length >= end)
        at = text.find(name, end)
    return None


def _recorded(
    training: RecordedTraining, prompt: str, most: int, *, requests: bool
) -> list[Trajectory]:
    """Recorded runs of a task, at most `most`, the newest first."""
    journal = training.store.journal
    headers = journal.headers("run_id = ?", (training.run_id,))
    found = (each for each in reversed(headers) if each.task.prompt == prompt)
    return [journal.with_calls(each, requests=requests) for each in islice(found, most)]


def _first_calls(training: RecordedTraining, runs: Sequence[Trajectory]) -> list[Call]:
    """First call of the policy in each run that has one."""
    firsts = [
        next((each for each in _calls(training, run) if each.parent is None), None) for run in runs
    ]
    found = [each for each in firsts if each is not None]
    if not found:
        raise RunError(
            f"The graph {runs[0].graph} does not call the policy for this task.",
            "Name a call of the record: --thread THREAD --turn N.",
        )
    return found


async def _asked(training: RecordedTraining, prompt: str, count: int) -> list[Trajectory]:
    """Run a task `count` times with the loaded policy and the settings of the last stage. Nothing
    is kept.
    """
    config = training.config_at(len(training.rows) - 1)
    learner = training.learner
    model: Any = learner.accelerator.unwrap_model(learner.model)
    engine = TransformersEngine(model, learner.codec, name=learner.name)
    try:
        with tempfile.TemporaryDirectory() as folder:
            episodes = group_episodes(
                [Task(prompt=prompt, id="why", family="why")],
                count,
                run_id="why",
                stage="why",
                seed=config.seed,
                graph=config.graph,
                context=config.context,
                options=config.task_options(),
            )
            allow = config.allowed_types
            opened = open_run(Path(folder), learner.name, config, backend=engine, allow=allow)
            async with opened as runner:
                return await asyncio.gather(*map(runner.run, episodes))
    finally:
        engine.close()


def turn_of(
    training: RecordedTraining, thread: str, turn: int | None, text: str | None
) -> Behaviour:
    """Behaviour: a model call of a recorded run has its recorded answer.

    `turn`: number of the call among those of the policy, from 1 (None: the last). `text`: part of the
    answer that is meant, at its last occurrence. If the answer lacks it, it is appended (None: the
    whole answer).
    """
    run = training.store.journal.find_trajectory(thread, requests=False)
    if run is None:
        known = [each.thread_id for each in training.store.threads(run_id=training.run_id)]
        raise RunError(
            f"Thread {thread!r} is missing in {training.store.url}. {nearest(thread, known)}".strip(),
            f"`hrm-agent history --store {training.folder}` lists them.",
        )
    calls = _calls(training, run)
    number = len(calls) if turn is None else turn
    if not 1 <= number <= len(calls):
        raise ConfigError(
            f"Thread {thread!r} has {len(calls)} calls of the trained policy, and no call {number}.",
            f"Write --turn 1 to {len(calls)}." if calls else "Name another thread.",
        )
    call = calls[number - 1]
    path = path_to(run.calls, call.id)
    before = [token for each in path[:-1] for token in each.token_ids]
    first = _sampled_from(call)
    prompt = [*before, *call.token_ids[:first]]
    answer = call.token_ids[first:]
    if text is None:
        return _behaviour(training, call, prompt, answer)
    place = _tokens_of(training, answer, text) if text else None
    if place is not None:
        return _behaviour(training, call, [*prompt, *answer[: place[0]]], answer[slice(*place)])
    codec: Any = training.learner.codec
    ended = bool(answer) and answer[-1] in codec.control_token_ids
    whole = answer[:-1] if ended else answer
    return _behaviour(training, call, [*prompt, *whole], codec.encode_text(text))


async def flip_of(training: RecordedTraining, episode: Episode, version: int) -> Behaviour:
    """Behaviour: under `version`, an answer in the film of a task first differs by this token.

    Raises `RunError` if the version is not kept or does not change the run.
    """
    steps = len(training.rows)
    if version > steps:
        raise RunError(
            f"{training.folder} has {steps} steps, and no step {version}.",
            f"Write --flip 1 to {steps}.",
        )
    if version not in training.kept:
        raise RunError(
            f"The version after step {version} is not kept.",
            f"Kept are the versions {', '.join(map(str, training.kept))}.",
        )
    versions = [each for each in training.kept if each <= version]
    made = await film(training, [episode], versions=versions)
    scenes = made.reels[0].scenes
    found = next((each for each in scenes if each.version == version and each.flips), None)
    if found is None:
        known = ", ".join(str(each.version) for each in scenes if each.flips)
        raise RunError(
            f"No token of this task flips after step {version}.",
            f"Earlier flips are after the steps {known}." if known else "Film the task first.",
        )
    flip = found.flips[0]
    call = found.run.calls[flip.call]
    prompt, _, _ = requests_of(found.run)[call.id]
    context = [*prompt, *answer_of(call)[: flip.token]]
    return _behaviour(training, call, context, [flip.new_id])


def _calls(training: RecordedTraining, run: Trajectory) -> list[Call]:
    """Calls of the trained policy."""
    return [each for each in run.calls if each.model == training.learner.name and each.token_ids]


def _tokens_of(
    training: RecordedTraining, answer: Sequence[int], text: str
) -> tuple[int, int] | None:
    """Token range of the last occurrence of a text (None if the text is missing)."""
    pieces = token_texts(training.learner.codec, answer)
    at = "".join(pieces).rfind(text)
    if at < 0:
        return None
    ends: list[int] = []
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + len(piece))
    first = next(i for i, end in enumerate(ends) if end > at)
    last = next(i for i, end in enumerate(ends) if end >= at + len(text))
    return first, last + 1


def _sampled_from(call: Call) -> int:
    """Index of the first token that the policy sampled."""
    return call.mask.index(True) if True in call.mask else len(call.mask)


def _behaviour(
    training: RecordedTraining, call: Call, context: Sequence[int], text: Sequence[int]
) -> Behaviour:
    if not text:
        raise ConfigError("The text has no token.", "Write --says TEXT.")
    ids = (*context, *text)
    longest = longest_conversation(training.learner.model)
    if len(ids) > longest:
        raise ModelError(
            f"Context and text have {len(ids)} tokens, but the policy takes at most {longest}.",
            "Name a shorter text.",
        )
    roles = training.config.adapter.lora_roles
    role = call.identity.role if call.identity.role in roles else ""
    return Behaviour(ids, len(context), call.sampled_with.temperature or 1.0, role)
