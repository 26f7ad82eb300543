r"""Rules that decide the classes of a failed run.

Each rule reads the record alone: statuses, stop reasons, and texts that are compared with the
reference answer. A rule that needs what a record lacks (a reference answer, requests, outcomes of
tools) is not checkable for that run, which is counted and never taken for "does not match".

A record's texts come from a policy, which may write anything. A text can at most put its own run
into another class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hrm_agent.answers.final_answer import stated_value
from hrm_agent.answers.json_repair import json_values
from hrm_agent.retrieval.citations.marks import find_marks
from hrm_agent.training.analysis.facts import error_class, error_line
from hrm_agent.training.analysis.failures.classes import UNEXPLAINED, in_precedence
from hrm_agent.training.analysis.failures.failed_run import (
    ANSWERS,
    ARGUMENTS,
    RESULTS,
    FailedRun,
    bounded,
    last_message,
    request_text,
    shown,
)
from hrm_agent.training.analysis.failures.repeats import (
    LEAST,
    repeated_call,
    repeated_end,
    repeated_reply,
)
from hrm_agent.training.rollout.eligibility import error_of, lost_tool_calls
from hrm_agent.training.tasks.verify import answer_line
from hrm_agent.trajectory import (
    Call,
    FinishReason,
    RunStatus,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
)
from hrm_agent.trajectory.words import code_of, text_of

__all__ = ["Evidence", "Explained", "explain"]

NO_REFERENCE = "no reference answer is on record"
NO_REQUESTS = "requests are not on record"
NO_FINAL_TEXT = "the final text is not on record"
NO_REPLY = "a reply has neither a text nor a tool call on record"
NO_TOOLS = "the tools that were offered are not on record"
NO_OUTCOMES = "outcomes of tool calls are not on record"
TOO_COMMON = "the reference answer is a letter or a word that many texts have"
GIVEN_AWAY = "the task's text has the reference answer"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Reason why a run matches a class."""

    detail: str
    """Kind within the class: the limit, the exception, the way of repeating (empty if there is
    none).
    """
    call: str
    """Id of the model call or tool call that shows it (empty if no call does)."""
    excerpt: str
    """Text that shows it, in one line."""
    role: str = ""
    """Role that made the failure (empty: that of the call)."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Classes of one failed run."""

    primary: str
    """Name of its primary class."""
    secondary: tuple[str, ...]
    """Names of the further classes that match, in their order of precedence."""
    evidence: dict[str, Evidence]
    """Evidence of each class that matches."""
    unchecked: dict[str, str]
    """Class whose rule is not checkable -> reason."""


@dataclass(frozen=True, slots=True)
class _Lack:
    """Missing part of a record that a rule reads."""

    reason: str


_Found = Evidence | _Lack | None


def explain(trajectory: Trajectory) -> Explained:
    """Classes of a failed run, read with its requests."""
    run = FailedRun(trajectory)
    evidence: dict[str, Evidence] = {}
    unchecked: dict[str, str] = {}
    for names, rule in _RULES:
        found = rule(run)
        if found is None:
            needed = (part for part in _NEEDED.get(names[0], ()) if run.lacks(part))
            found = next((_Lack(f"{part} are not on record") for part in needed), None)
        if isinstance(found, _Lack):
            unchecked |= dict.fromkeys(names, found.reason)
        elif isinstance(found, Evidence):
            evidence[names[0]] = found
        elif found is not None:
            evidence[found[0]] = found[1]
    ordered = in_precedence(evidence) or [UNEXPLAINED]
    return Explained(ordered[0], tuple(ordered[1:]), evidence, unchecked)


def _stopped(run: FailedRun) -> _Found:
    end = run.trajectory
    if end.status is RunStatus.ABORTED or end.stop_reason is StopReason.INTERRUPT:
        return Evidence(str(end.stop_reason or end.status), "", error_of(end))
    return None


def _not_scored(run: FailedRun) -> _Found:
    if run.trajectory.stop_reason is StopReason.VERIFIER_ERROR:
        return Evidence("", "", error_of(run.trajectory, place=True))
    return None


def _infrastructure(run: FailedRun) -> _Found:
    lost = lost_tool_calls(run.trajectory)
    if not lost:
        return None
    return Evidence(lost[-1].name, lost[-1].id, shown(lost[-1].stderr or lost[-1].content))


def _raised(run: FailedRun) -> bool:
    """True if the run ended by an error that no reply is known to have caused."""
    end = run.trajectory
    return end.status is RunStatus.FAILED and end.stop_reason not in (
        StopReason.VERIFIER_ERROR,
        StopReason.UNUSABLE_ANSWER,
    )


def _provider(run: FailedRun) -> _Found:
    """The newest model call failed, and the run with it."""
    failed = run.trajectory.failed_calls
    if not _raised(run) or not failed:
        return None
    last = max(failed, key=lambda call: call.ended_at)
    if any(call.started_at > last.ended_at for call in run.calls) or last.error is None:
        return None
    return Evidence(last.error.name, last.id, shown(str(last.error)))


def _graph_error(run: FailedRun) -> _Found:
    if not _raised(run) or _provider(run) is not None:
        return None
    return Evidence("", "", error_of(run.trajectory, place=True) or "no error is on record")


def _completed(run: FailedRun) -> bool:
    return run.trajectory.status is RunStatus.COMPLETED


def _wrong_form(run: FailedRun) -> _Found:
    if not _completed(run) or not run.answer.strip():
        return None
    if run.reference is None:
        return _Lack(NO_REFERENCE)
    text = run.visible if run.box is None else run.box
    if not run.states(text):
        return None
    # a text may name the alternatives of its task, and choose another one
    if run.given_away and not run.gives_reference:
        return _Lack(GIVEN_AWAY)
    return Evidence("", run.last_call.id if run.last_call else "", shown(run.visible))


_ACCEPTS = re.compile(r"accept(ed)?|approved?|submit|ok(ay)?|yes|done|pass(ed)?|correct|true|right")
_REJECTS = re.compile(
    r"revis(e|ion)|fix|retry|redo|repair|reject(ed)?|resolve|re_?plan|plan|new_plan|plan_again"
    r"|restart|give_?up|abort|fail(ed)?|impossible|quit|no|incorrect|wrong|false"
)
_VERDICTS = ("action", "verdict", "decision", "status")
_CRITIC = re.compile(r"critic|critique|review|verif|judge|check|evaluat", re.IGNORECASE)


def _verdicts(run: FailedRun) -> list[tuple[Call, bool]]:
    """Replies of critics that can be read, each with True if it accepts."""
    found: list[tuple[Call, bool]] = []
    for call in run.calls:
        if not _CRITIC.search(call.identity.role):
            continue
        for value in json_values(bounded(text_of(call.response))):
            said = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            word = next((said[name] for name in _VERDICTS if name in said), value)
            word = str(word).strip().lower().replace(" ", "_").replace("-", "_")
            accepts = _ACCEPTS.fullmatch(word) is not None
            if accepts or _REJECTS.fullmatch(word):
                found.append((call, accepts))
                break
    return found


def _was_shown(run: FailedRun, critic: Call) -> bool | None:
    """True if a critic was shown the reference answer (None if its request is not on record)."""
    said = last_message(critic)
    if said is None:
        return None
    return any(run.states(line) for line in _without_task(run, said).splitlines())


def _without_task(run: FailedRun, text: str) -> str:
    """Text without the task that it quotes."""
    return bounded(text).replace(bounded(run.trajectory.task.prompt), "", 1)


def _critic_rejected(run: FailedRun) -> _Found:
    rejected = [call for call, accepts in _verdicts(run) if not accepts]
    if not rejected:
        return None
    if (lack := _without_reference(run)) is not None:
        return lack
    seen = [(call, _was_shown(run, call)) for call in rejected]
    right = next((call for call, had in seen if had), None)
    if right is not None:
        return Evidence(right.identity.role, right.id, shown(text_of(right.response)))
    return _Lack(NO_REQUESTS) if any(had is None for _, had in seen) else None


def _critic_accepted(run: FailedRun) -> _Found:
    verdicts = _verdicts(run)
    if not verdicts or not verdicts[-1][1]:
        return None
    if (lack := _without_reference(run)) is not None:
        return lack
    last = verdicts[-1][0]
    had = _was_shown(run, last)
    if had is None:
        return _Lack(NO_REQUESTS)
    if had:
        return None
    results = _without_task(run, last_message(last) or "")
    return Evidence(last.identity.role, last.id, shown(results))


def _without_reference(run: FailedRun) -> _Lack | None:
    if run.reference is None:
        return _Lack(NO_REFERENCE)
    if run.too_common:
        return _Lack(TOO_COMMON)
    return _Lack(GIVEN_AWAY) if run.given_away else None


def _loop(run: FailedRun) -> _Found:
    known = not run.lacks(ARGUMENTS) and not run.lacks(RESULTS)
    if known and (found := repeated_call(run)) is not None:
        tool, times = found
        return Evidence("same call", tool.id, shown(f"{times} times: {code_of(tool.arguments)}"))
    if (replied := repeated_reply(run)) is not None:
        call, times = replied
        return Evidence("same reply", call.id, shown(f"{times} times: {text_of(call.response)}"))
    for call in run.calls:
        cut = call.finish_reason is FinishReason.LENGTH
        if (cut or call is run.last_call) and (part := repeated_end(text_of(call.response))):
            return Evidence("same text", call.id, shown(part))
    unknown = sum(call.request is None for call in run.calls) >= LEAST
    return _Lack(NO_REQUESTS) if unknown else None


_SEARCHES = re.compile(
    r"search|retriev|lookup|look_up|wiki|browse|query|fetch|document|source", re.IGNORECASE
)
_NOTHING = re.compile(
    r"\s*(?:\[\s*\]|\{\s*\}|null|none"
    r"|(?:no|0|zero) (?:\w+ ){0,2}?(?:results?|documents?|match(?:es)?|hits?|pages?|sources?)\b.{0,80}"
    r"|(?:nothing|not) (?:was )?found.{0,80}"
    r"|\{\s*\"\w+\"\s*:\s*\[\s*\]\s*\})?\s*\.?\s*",
    re.IGNORECASE | re.DOTALL,
)


def _no_source(run: FailedRun) -> _Found:
    searched = [tool for tool in run.tools if _SEARCHES.search(tool.name)]
    ended = [tool for tool in searched if tool.status is ToolStatus.OK]
    if not ended:
        unknown = any(tool.status is None for tool in searched)
        return _Lack(NO_OUTCOMES) if unknown else None
    if run.lacks(RESULTS) or not all(_NOTHING.fullmatch(bounded(t.content)) for t in ended):
        return None
    last = ended[-1]
    return Evidence(last.name, last.id, shown(f"{code_of(last.arguments)}: {last.content}"))


_REFUSAL = re.compile(
    r"\b(?:(?:can(?:no|')t|can ?not|could(?: not|n't)|unable to|not able to|impossible to)"
    r" (?:\w+ ){0,2}?(?:solve|answer|help|assist|determine|say|find|do|compute|calculate|complete|"
    r"provide|know|tell|be (?:determined|solved|answered|computed|known))"
    r"|(?:do not|don't|does not|did not|didn't) know|give up|giving up|no idea|not enough"
    r" information|no answer was found|not answered|do not answer this)\b",
    re.IGNORECASE,
)
_NO_VALUE = re.compile(
    r"(?:unknown|n/?a|none|null|not (?:known|available)|undefined|\?+|-+|)\.?", re.IGNORECASE
)
_LONGEST_REFUSAL = 600


def _gave_up(run: FailedRun) -> _Found:
    end = run.trajectory
    call = run.last_call.id if run.last_call else ""
    if end.stop_reason is StopReason.GAVE_UP:
        verdict = next((call for call, accepts in reversed(_verdicts(run)) if not accepts), None)
        said = text_of(verdict.response) if verdict is not None else run.answer
        return Evidence("critic", verdict.id if verdict is not None else call, shown(said))
    if not _completed(run):
        return None
    if not run.answer.strip():
        if run.lacks(ANSWERS):
            return None
        # a graph may have its result elsewhere than in a final text
        if run.last_call is not None and text_of(run.last_call.response).strip():
            return _Lack(NO_FINAL_TEXT)
        return Evidence("empty text", call, "")
    stated = stated_value(run.answer)
    text = run.visible if stated is None else bounded(stated)
    text = text.replace("\u2019", "'")
    if (stated is not None and _NO_VALUE.fullmatch(re.sub(r"\\text\{(.*)\}", r"\1", text))) or (
        len(text) <= _LONGEST_REFUSAL and _REFUSAL.search(text)
    ):
        return Evidence("refusal", call, shown(run.visible))
    return None


def _limit(run: FailedRun) -> _Found:
    end = run.trajectory
    last = run.last_call
    if end.status is RunStatus.TRUNCATED and end.stop_reason not in (
        StopReason.GAVE_UP,
        StopReason.INTERRUPT,
    ):
        said = error_of(end) or (text_of(last.response)[-160:] if last is not None else "")
        return Evidence(str(end.stop_reason or "limit"), last.id if last else "", shown(said))
    if _completed(run) and last is not None and last.finish_reason is FinishReason.LENGTH:
        return Evidence("max_tokens", last.id, shown(text_of(last.response)[-160:]))
    return None


def _unreadable(run: FailedRun) -> _Found:
    if run.trajectory.stop_reason is not StopReason.UNUSABLE_ANSWER:
        return None
    last = run.calls[-1] if run.calls else None
    return Evidence("", last.id if last else "", error_of(run.trajectory, place=True))


_ASKS_FOR = (("box", "\\boxed"), ("<answer>", "<answer>"))


def _no_final_answer(run: FailedRun) -> _Found:
    if not _completed(run) or not run.answer.strip():
        return None
    if run.box is not None or answer_line(run.answer) is not None:
        return None
    last = run.last_call
    asked = request_text(last, "system", "human") if last is not None else None
    if last is None or asked is None:
        return _Lack(NO_REQUESTS)
    for detail, mark in _ASKS_FOR:
        if mark in asked and not (mark == "<answer>" and "<answer>" in run.visible):
            return Evidence(detail, last.id, shown(run.visible or run.answer))
    return None


def _lost_result(run: FailedRun) -> _Found:
    if not _completed(run) or not run.answer.strip():
        return None
    if not run.tools and len(run.calls) < 2:
        return None
    if (lack := _without_reference(run)) is not None:
        return lack
    for tool in reversed(run.tools):
        results = (tool.value, tool.stdout, tool.content)
        if tool.status is ToolStatus.OK and any(run.results_have(each or "") for each in results):
            said = next(each for each in results if run.results_have(each or ""))
            return Evidence(tool.name, tool.id, shown(f"{said} -> {run.visible}"), _last_role(run))
    for call in reversed(run.calls):
        said = stated_value(bounded(text_of(call.response)))
        if call is not run.last_call and said is not None and run.states(said):
            excerpt = shown(f"{said} -> {run.visible}")
            return Evidence(call.identity.role, call.id, excerpt, _last_role(run))
    return None


def _last_role(run: FailedRun) -> str:
    """Role that gave the final text."""
    return run.last_call.identity.role if run.last_call is not None else ""


_CITES = re.compile(r"\bcit(?:e|es|ed|ing|ation|ations)\b", re.IGNORECASE)


def _not_cited(run: FailedRun) -> _Found:
    searched = [t for t in run.tools if _SEARCHES.search(t.name) and t.status is ToolStatus.OK]
    found = [tool for tool in searched if not _NOTHING.fullmatch(bounded(tool.content))]
    last = run.last_call
    if not _completed(run) or not found or not run.visible or last is None:
        return None
    asked = request_text(last, "system", "human")
    if asked is None:
        return _Lack(NO_REQUESTS)
    if not _CITES.search(asked) or next(iter(find_marks(run.visible, {})), None) is not None:
        return None
    return Evidence(found[-1].name, last.id, shown(run.visible), _last_role(run))


_TOOL_CLASSES = {
    ToolStatus.INVALID_CALL: "invalid_tool_call",
    ToolStatus.TIMEOUT: "tool_timeout",
    ToolStatus.OUT_OF_MEMORY: "tool_memory",
    ToolStatus.OUTPUT_LIMIT: "tool_output",
    ToolStatus.DENIED: "tool_denied",
    ToolStatus.ERROR: "tool_error",
}


def _last_tool(run: FailedRun) -> tuple[str, Evidence] | _Found:
    """The last tool call of some role failed, so that its error was not mended."""
    newest: dict[tuple[str, str], ToolCall] = {}
    for tool in run.tools:
        if tool.status is not None:
            newest[run.role_of(tool)] = tool
    if run.tools and not newest:
        return _Lack(NO_OUTCOMES)
    last_of_roles = {tool.id for tool in newest.values()}
    failed = [t for t in run.tools if t.id in last_of_roles and t.status in _TOOL_CLASSES]
    if failed:
        tool = failed[-1]
        assert tool.status is not None
        said = tool.stderr or tool.content
        detail = error_class(said) if tool.status is ToolStatus.ERROR else tool.name
        if tool.status is ToolStatus.INVALID_CALL and tool.name in ("", "unknown"):
            detail = "no tool named"
        line = error_line(said) or code_of(tool.arguments)
        return _TOOL_CLASSES[tool.status], Evidence(detail, tool.id, shown(line))
    last = run.last_call
    undecoded = last.response.get("invalid_tool_calls") if last is not None else None
    if last is not None and (undecoded or "<tool_call>" in run.answer):
        given = undecoded[0].get("args") if undecoded else run.answer
        return "invalid_tool_call", Evidence("", last.id, shown(str(given)))
    return None


_GOALS = ("subgoals", "plan", "steps", "tasks", "goals", "questions")
_GOAL_TEXTS = ("goal", "description", "task", "question", "step", "subgoal")


def _goals(call: Call) -> list[str]:
    """Goals of a plan, if a reply is one."""
    for value in json_values(bounded(text_of(call.response))):
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        listed = next((fields[name] for name in _GOALS if isinstance(fields.get(name), list)), [])
        texts = [
            each
            if isinstance(each, str)
            else next((each[name] for name in _GOAL_TEXTS if isinstance(each.get(name), str)), "")
            for each in cast("list[Any]", listed)
            if isinstance(each, (str, dict))
        ]
        if texts:
            return [" ".join(text.split()) for text in texts if text.strip()]
    return []


_FAILED_SUBGOAL = re.compile(r"^(\w{1,40}) = failed$", re.MULTILINE)


def _plan_not_followed(run: FailedRun) -> _Found:
    if not _completed(run):  # a run that was cut has not done all of its plan
        return None
    plans = [(place, goals) for place, each in enumerate(run.calls) if (goals := _goals(each))]
    if plans and len(plans[-1][1]) > 1:
        place, goals = plans[-1]
        requests = [request_text(each) for each in run.calls[place + 1 :]]
        if None in requests:
            return _Lack(NO_REQUESTS)
        prompt = " ".join(bounded(run.trajectory.task.prompt).split())
        # the words of a goal may be words of the task
        said = [" ".join((each or "").split()).replace(prompt, "") for each in requests]
        had = [[goal in each for goal in goals] for each in said]
        # a request that quotes the whole plan passes no single subgoal on
        passed = [any(column) for column in zip(*(row for row in had if not all(row)), strict=True)]
        if any(passed) and not all(passed):
            left = goals[passed.index(False)]
            call = run.calls[place].id
            return Evidence("not done", call, shown(f"{passed.count(False)} left: {left}"))
    last = run.last_call
    said = last_message(last) if last is not None else None
    if (
        said is not None
        and len(run.calls) > 1
        and (failed := _FAILED_SUBGOAL.search(bounded(said)))
    ):
        assert last is not None
        return Evidence("no value", last.id, shown(failed[0]))
    return None


def _no_tool(run: FailedRun) -> _Found:
    if run.tools or not run.calls or not _completed(run):
        return None
    if all(call.tools is None for call in run.calls):
        return _Lack(NO_TOOLS)
    # formats of others have no place for a tool call that could not be decoded
    if any(call is not run.last_call and not text_of(call.response) for call in run.calls):
        return _Lack(NO_REPLY)
    offering = next((call for call in reversed(run.calls) if call.tools), None)
    if offering is None:
        return None
    return Evidence("", offering.id, shown(text_of(offering.response)))


_NEEDED = {
    **dict.fromkeys(("wrong_form", "gave_up", "no_final_answer", "plan_not_followed"), (ANSWERS,)),
    **dict.fromkeys(("critic_rejected_right", "critic_accepted_wrong"), (ANSWERS,)),
    "loop": (ANSWERS, ARGUMENTS, RESULTS),
    **dict.fromkeys(("no_source", "not_cited"), (RESULTS,)),
    "lost_result": (ANSWERS, RESULTS),
}
"""Parts of an imported trace that the rule of a class reads."""
_Rule = Callable[[FailedRun], "_Found | tuple[str, Evidence]"]
_RULES: Sequence[tuple[tuple[str, ...], _Rule]] = (
    (("stopped",), _stopped),
    (("not_scored",), _not_scored),
    (("infrastructure",), _infrastructure),
    (("provider",), _provider),
    (("graph_error",), _graph_error),
    (("wrong_form",), _wrong_form),
    (("critic_rejected_right",), _critic_rejected),
    (("loop",), _loop),
    (("no_source",), _no_source),
    (("gave_up",), _gave_up),
    (("limit",), _limit),
    (("unreadable_reply",), _unreadable),
    (("no_final_answer",), _no_final_answer),
    (("lost_result",), _lost_result),
    (("not_cited",), _not_cited),
    ((*_TOOL_CLASSES.values(),), _last_tool),
    (("plan_not_followed",), _plan_not_followed),
    (("critic_accepted_wrong",), _critic_accepted),
    (("no_tool",), _no_tool),
)
"""Rules with the classes that they decide."""
