"""Penalties of GRPO-RoC for a rollout (rStar2-Agent, arXiv 2508.20722), counted so that padding
does not lower them.

    p_err    = 0.5 without a tool call that counts, else failed calls / (failed calls + effective calls)
    p_format = 1 without an <answer> tag,            else min(1, surplus answer tags / turns)

In the paper both are over *all* calls and turns, and a policy lowers them by calls that do nothing.
Here a successful call counts only if it is *effective*:

* It differs from every earlier call by more than wording: comments, whitespace, and the names that
  the code defines itself make no difference (`hrm_agent.training.select.code_facts`). Nor does it
  repeat a call that failed before. Sessions are compared separately: one solver does not know what
  another has run.
* And its output was not known before, or it set or changed a variable of its session that a later
  effective call takes. Known are the words and numbers of this and earlier code of the session,
  what follows from them without calculation, and what was shown before
  (`hrm_agent.training.select.novelty`, `hrm_agent.training.select.retracing.sessions`). So
  `print("hello")` shows nothing new, and neither do `if True: print("hello")`, `chr(104) +
  chr(105)`, `print(n + 1)`, a variable of an earlier call that holds a text, the time, or the
  version of Python. Renaming a variable, or setting it to the value it already has (`x = x + 0`),
  changes nothing.

A program that only prints words of its own (`print("prime")`) is padding by this rule. One that
prints a number, or a `True` that was calculated, is not. Findings about words or lists of the
problem count although little is calculated: `"strawberry".count("r")`.

A failed call counts once, however often it was repeated. A call whose arguments could not be
decoded is a call like any other. Calls of tools other than this package's for Python are effective
if they are distinct. Faults of the infrastructure, and calls that were never finished, count on
neither side. A turn counts unless it only made calls that do not count, or that failed before in
other words. Messages and calls of models other than the policy do not count. If no call is padding,
both penalties are those of the paper.

Limits: a number that is calculated and shown for no purpose is not detected, even one of literals
(`7 * 19` may be all that a rollout needs its tool for), nor is the result of a function that is not
retraced (`calendar.isleap(2024)`). Each such call has to show a number or a word that neither a
call nor an output of the session had before, so that repetitions in other words count once. It is
also not detected that a used value is changed and changed back, or that a used object of unknown
content is changed to no purpose. A variable taken through `eval`, `globals()`, a function of
another module, or by another model's call counts as not taken. Calls too long to be read count as
one. A small program whose result happens to appear in its code (`10 - 5`) does not count.

Penalties by role, for graphs with several roles:

Over the whole rollout, a role with many calls hides one with few: one failed call of a solver among
twenty hardly matters, even if it was the only call of its role. Here each role, the node that made
the call, has penalties of its own. Those of the rollout are the means over the roles that have
them:

* p_err exists for each role with tools: one of its calls was offered some, or asked for one. A
  planner without tools has none, so that the 0.5 of a rollout without a tool call does not count
  against it. A tool call belongs to the role that asked for it, whichever node executed it. One
  that no call asked for belongs to the role in whose node it ran.
* p_format exists for each role that wrote an answer tag. A graph does not declare which roles are
  to write one: a synthesizer whose problem asks for another format rightly writes none, while the
  solvers before it do. (If it should have, the answer is not read, and the rollout is a negative,
  whose penalty is not used.) If no role wrote one, the role of the last call gets 1, as over the
  whole rollout.

Calls are counted over the whole rollout (`count_calls`), since roles may share a session: a
variable that one sets and another takes was of use, and the same failure counts once, for the role
that made it first. The counts of the roles therefore add up to those of the whole.

A rollout in which the policy answers in one role only (the tool loop, a graph whose nodes are not
on record) has the penalties over the whole.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hrm_agent.answers.fenced_code import block_ids
from hrm_agent.tools.python_tool import DIFFERS, LOST, NO_OUTPUT, python, python_stateless
from hrm_agent.training.select.code_facts import CodeFacts, code_facts
from hrm_agent.training.select.novelty import Known
from hrm_agent.training.select.retracing.sessions import SessionValues
from hrm_agent.trajectory import Call, RolePenalty, ToolCall, ToolStatus, Trajectory, content_hash
from hrm_agent.trajectory.forest import conversations

__all__ = [
    "CountedCalls",
    "answer_tags",
    "asked_ids",
    "count_calls",
    "error_share",
    "mean_penalties",
    "penalty_error",
    "penalty_format",
    "policy_tool_calls",
    "role_penalties",
]

_NOTES = (LOST, DIFFERS.partition("{}")[0])
_BLANK = re.compile(r"#[^\n]*|\s+")


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """Tool calls of a rollout that ended through the policy's own doing."""

    failed_calls: tuple[ToolCall, ...]
    """Calls that failed, repeats left out."""
    effective_calls: tuple[ToolCall, ...]
    """Successful calls that were of use."""
    padding: frozenset[str]
    """`tool_call_id` of each call that counts in neither."""
    counted: frozenset[str] = frozenset()
    """`tool_call_id` of each call that counts in one of them."""

    @property
    def failed(self) -> int:
        return len(self.failed_calls)

    @property
    def effective(self) -> int:
        return len(self.effective_calls)

    @property
    def error(self) -> float:
        """Penalty p_err."""
        return error_share(self.failed, self.effective)


def count_calls(tool_calls: Sequence[ToolCall], problem: str = "") -> CountedCalls:
    """Count the calls of one rollout, in their order. `problem` is the text that the rollout was
    given.
    """
    sessions: dict[str, _Session] = {}
    ended = [
        _Looked(call, sessions, problem)
        for call in tool_calls
        if call.status is not None and call.status is not ToolStatus.INFRASTRUCTURE
    ]
    failed: dict[tuple[str, str], _Looked] = {}
    for looked in ended:
        if looked.failed:
            failed.setdefault(looked.asked, looked)
    known = {looked.form: looked.call for looked in reversed(failed.values())}
    effective = _effective([looked for looked in ended if not looked.failed])
    good = [
        looked.call
        for looked in effective
        if looked.asked not in failed and looked.form not in known
    ]
    counted = frozenset(call.tool_call_id for call in (*known.values(), *good))
    padding = frozenset(looked.call.tool_call_id for looked in ended) - counted
    return CountedCalls(
        tuple(looked.call for looked in failed.values()), tuple(good), padding, counted
    )


def error_share(failed: int, effective: int) -> float:
    """p_err of these numbers of calls: the share of failed ones (0.5 without any)."""
    return failed / (failed + effective) if failed + effective else 0.5


def penalty_error(tool_calls: Sequence[ToolCall]) -> float:
    """Share of failed calls among those that count (0.5 without any)."""
    return count_calls(tool_calls).error


def policy_tool_calls(trajectory: Trajectory) -> list[ToolCall]:
    """Own tool calls of a rollout, except those that only another model asked for."""
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for call in trajectory.own_calls:
        asked[call.model == trajectory.policy].update(asked_ids(call))
    others = asked[False] - asked[True]
    return [call for call in trajectory.own_tool_calls if call.tool_call_id not in others]


def asked_ids(call: Call) -> list[str]:
    """`tool_call_id` of each tool call that a model call asked for, or may have asked for by a
    fenced block.
    """
    made = [
        *(call.response.get("tool_calls") or ()),
        *(call.response.get("invalid_tool_calls") or ()),
    ]
    return [*(str(each.get("id")) for each in made), *block_ids(call.id)]


def penalty_format(
    calls: Sequence[Call],
    tools: CountedCalls | None = None,
    policy: str | None = None,
    role: str | None = None,
) -> float:
    """1 without an answer tag, else the surplus of answer tags per turn, at most 1.

    `tools`: counted tool calls (None: all count). `policy`, `role`: model and role whose turns
    count (None: all).
    """
    own = {
        call.id
        for call in calls
        if (policy is None or call.model == policy) and (role is None or call.identity.role == role)
    }
    talks = [[call for call in talk if call.id in own] for talk in conversations(calls)]
    tags = [sum(map(answer_tags, talk)) for talk in talks]
    if not any(tags):
        return 1.0
    turns = sum(tools is None or not _only_pads(call, tools) for talk in talks for call in talk)
    return min(1.0, sum(max(0, count - 1) for count in tags) / max(1, turns))


class _Session:
    """Facts of a session from its calls so far."""

    def __init__(self, problem: str) -> None:
        self.values = SessionValues(problem)
        self.known = Known()


class _Looked:
    """Ended call with the facts of its code and its output."""

    __slots__ = ("asked", "call", "facts", "failed", "form", "news", "output", "session", "sets")

    def __init__(self, call: ToolCall, sessions: dict[str, _Session], problem: str) -> None:
        self.call = call
        self.failed = call.status is not None and call.status.is_policy_failure
        self.session = (
            "" if call.name != python.name else f"{call.identity.thread_id} {call.identity.scope}"
        )
        """Session of the call. Empty for a tool without one."""
        self.asked = self.session, call.repeated_of or call.id
        """Key that is equal for calls of one session with the same arguments."""
        is_python = call.name in (python.name, python_stateless.name)
        given = call.arguments.get("code") if isinstance(call.arguments, dict) else None
        code = given if isinstance(given, str) and is_python else None
        self.facts = code_facts(code) if code is not None else None
        self.form = _form(call, code, self.facts, self.session, failed=self.failed)
        self.output = _output(call)
        self.news: bool | None = None
        """True if the call showed something new (None if the record does not show it)."""
        self.sets: frozenset[str] = frozenset()
        """Variables that the call set to a new value, or changed."""
        if code is not None and self.facts is not None and self.facts.form:
            seen = sessions.setdefault(self.session, _Session(problem))
            self.sets = left = (
                self.facts.sets | self.facts.changes if call.name == python.name else frozenset()
            )
            try:
                self._look(code, self.facts, seen)
            except Exception:  # what a policy wrote must not end its training
                self.news, self.sets = None, left

    def _look(self, code: str, facts: CodeFacts, seen: _Session) -> None:
        own, left = self.call.name == python.name, self.sets
        if (
            not facts.sets
            and self.output
            and not self.failed
            and seen.known.has_plain_news(code, self.output)
        ):
            self.news, self.sets = True, frozenset()
            return
        values = seen.values if own else SessionValues(seen.values.problem)
        retraced = values.follow(code, left)
        seen.known.read(code, retraced)
        self.sets = left - retraced.kept if retraced is not None else left
        if self.output and not self.failed:
            self.news = seen.known.has_news(self.output, retraced) and not facts.recites
        elif self.output is not None:
            self.news = False


def _effective(went_well: Sequence[_Looked]) -> list[_Looked]:
    """Calls that showed something new, or left a variable that a later effective call takes."""
    first: dict[str, _Looked] = {}
    for looked in went_well:
        first.setdefault(looked.form, looked)
    distinct = list(first.values())
    through = _through(distinct)
    taken: dict[str, set[str]] = defaultdict(set)
    found: list[_Looked] = []
    for looked in reversed(distinct):
        facts = looked.facts
        if facts is None:
            found += [looked] if looked.output != "" else []
            continue
        names = taken[looked.session]
        if facts.renames:
            for new, old in reversed(facts.renames):
                if new in names:
                    names.remove(new)
                    names |= _reach({old}, through[looked.session])
            continue
        showed = facts.shows and not facts.recites if looked.news is None else looked.news
        if facts.form and (showed or looked.sets & names):
            found.append(looked)
            names -= facts.sets
            names |= _reach(facts.reads, through[looked.session])
    return found[::-1]


def _through(calls: Iterable[_Looked]) -> dict[str, dict[str, set[str]]]:
    """Names that the functions defined in a session take from it, by session and function."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for looked in calls:
        for name, free in looked.facts.through if looked.facts is not None else ():
            found[looked.session][name] |= free
    return found


def _reach(names: Iterable[str], through: dict[str, set[str]]) -> set[str]:
    """Given names, and the names that functions among them take."""
    reached: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= through.get(name, set[str]()) - reached
    return reached


def _form(
    call: ToolCall, code: str | None, facts: CodeFacts | None, session: str, *, failed: bool
) -> str:
    """Key that is equal for calls of one session that differ only in wording."""
    if code is None:
        try:
            return json.dumps([session, call.name, call.arguments], sort_keys=True, default=str)
        except RecursionError:
            return f"{session} {call.name} not read"
    if facts is not None:
        return f"{session} code {facts.form}"
    return f"{session} no Python {_BLANK.sub('', code)}" if failed else f"{session} code not read"


def _output(call: ToolCall) -> str | None:
    """Output of the code as shown to the model, empty if there is none (None if not on record).

    Notes on the session are left out of the text.
    """
    if call.stdout or call.value is not None:
        return f"{call.stdout}\n{call.value or ''}".strip()
    lines = [line for line in call.content.splitlines() if not line.startswith(_NOTES)]
    text = "\n".join(lines).strip()
    return None if not call.content.strip() else "" if text.endswith(NO_OUTPUT) else text


def _only_pads(call: Call, tools: CountedCalls) -> bool:
    """True if a turn only made calls that do not count, as calls or by fenced blocks."""
    listed: list[Any] = call.response.get("tool_calls") or []
    asked = [each.get("id") for each in listed]
    asked += [id_ for id_ in block_ids(call.id) if id_ in tools.padding or id_ in tools.counted]
    return bool(asked) and not answer_tags(call) and tools.padding.issuperset(asked)


def answer_tags(call: Call) -> int:
    """Answer tags in the text of a model call."""
    return _text(call.response.get("content")).count("<answer>")


def _text(content: Any) -> str:
    """The text of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(
        block if isinstance(block, str) else str(block.get("text", "")) for block in blocks
    )


_NO_TOOLS = ("", content_hash(()))
"""Values of `Call.tools_hash` without tools: not on record, or none offered."""


def role_penalties(
    trajectory: Trajectory, counted: CountedCalls | None = None
) -> dict[str, RolePenalty]:
    """Penalties by role, in the order of first appearance. Empty if the policy answered in fewer
    than two roles.

    `counted`: counts of the rollout's tool calls, if they already exist.
    """
    calls = [call for call in trajectory.own_calls if call.model == trajectory.policy]
    roles = list(dict.fromkeys(call.identity.role for call in calls))
    if len(roles) < 2:
        return {}
    tools = policy_tool_calls(trajectory)
    problem = trajectory.task.prompt if trajectory.task else ""
    counted = count_calls(tools, problem) if counted is None else counted
    asked_by = {id_: call.identity.role for call in calls for id_ in asked_ids(call)}

    def by_role(made: Iterable[ToolCall]) -> Counter[str]:
        return Counter(asked_by.get(tool.tool_call_id) or tool.identity.role for tool in made)

    failed, effective, made = (
        by_role(counted.failed_calls),
        by_role(counted.effective_calls),
        by_role(tools),
    )
    equipped = {
        call.identity.role
        for call in calls
        if call.tools or (call.tools is None and call.tools_hash not in _NO_TOOLS)
    } | made.keys()
    answering = {call.identity.role for call in calls if answer_tags(call)} or {
        calls[-1].identity.role
    }
    return {
        role: RolePenalty(
            failed=failed[role],
            effective=effective[role],
            error=error_share(failed[role], effective[role]) if role in equipped else None,
            format=(
                penalty_format(trajectory.own_calls, counted, trajectory.policy, role)
                if role in answering
                else None
            ),
        )
        for role in dict.fromkeys([*roles, *made])
    }


def mean_penalties(roles: Iterable[RolePenalty]) -> tuple[float, float]:
    """(p_err, p_format) of a rollout: the means over the roles that have them. If no role has one,
    the value for a rollout without calls.
    """
    each = list(roles)
    errors = [role.error for role in each if role.error is not None]
    formats = [role.format for role in each if role.format is not None]
    return fmean(errors) if errors else error_share(0, 0), fmean(formats) if formats else 1.0
