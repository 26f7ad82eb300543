"""Penalties of GRPO-RoC for a rollout (rStar2-Agent, arXiv 2508.20722), counted so that padding
does not lower them.

    p_err    = 0.5 without a tool call that counts, else failed calls / (failed calls + effective calls)
    p_format = 1 without an <answer> tag,            else min(1, surplus answer tags / turns)

In the paper both are over *all* calls and turns, so a policy can lower them by calls that do
nothing. Here a successful call counts only if it is *effective*, that is, if both of these hold:

* It differs from every earlier call by more than wording: comments, whitespace, and the names that
  the code defines itself make no difference (`hrm_agent.training.select.code_facts`). Nor does it
  repeat a call that failed before. Sessions are compared separately: one solver does not know what
  another has run.
* Its output was not known before, or it set or changed a variable of its session that a later
  effective call takes. Known are the words and numbers of this and earlier code of the session,
  everything that follows from them without calculation, and everything that was shown before
  (`hrm_agent.training.select.novelty`, `hrm_agent.training.select.retracing.sessions`). So
  `print("hello")` shows nothing new, and neither do `if True: print("hello")`, `chr(104) +
  chr(105)`, `print(n + 1)`, a variable of an earlier call that holds a text, the time, or the
  version of Python. Renaming a variable, or setting it to the value it already has (`x = x + 0`),
  changes nothing.

By this rule a program that only prints words of its code (`print("prime")`) is padding. A program
that prints a calculated number or `True` is not. Findings about words or lists of the problem
count, although little is calculated (`"strawberry".count("r")`).

A failed call counts once, no matter how often it was repeated. A call whose arguments could not be
decoded is a call like any other. Calls of tools other than this package's Python tools are
effective if they are distinct. Calls that failed because of the infrastructure, or were never
finished, count neither as failed nor as effective. A turn counts unless it only made calls that do
not count, or that failed before in other words. Messages and calls of models other than the policy
do not count. If no call is padding, both penalties equal those of the paper.

Some padding is not detected. A number that is calculated and shown for no purpose counts, even if
it is calculated from literals, since `7 * 19` may be all that a rollout needs its tool for. So does
the result of a function that is not retraced (`calendar.isleap(2024)`). But each such call has to
show a number or a word that no earlier call or output of the session had, so that repetitions in
other words count once. Nor is it detected if a used value is changed and changed back, or if a used
object of unknown content is changed to no purpose.

Some useful calls do not count. A variable taken through `eval`, `globals()`, a function of another
module, or by another model's call counts as not taken. Calls too long to be read count as one
call. A small program whose result happens to appear in its code (`10 - 5`) does not count.

Penalties by role, for graphs with several roles:

Over the whole rollout, a role with many calls hides a role with few: one failed call among twenty
hardly matters, even if it was the only call of its role. By role, each role (node that made the
call) has separate penalties, and the rollout has the means over the roles that have them:

* p_err exists for each role with tools, that is, if tools were offered to one of its calls or it
  asked for one. A planner without tools has no p_err, so that the 0.5 of a rollout without a tool
  call does not count against it. A tool call belongs to the role that asked for it, no matter which
  node executed it. A tool call for which no model call asked belongs to the role in whose node it
  ran.
* p_format exists for each role that wrote an answer tag. A graph does not declare which roles must
  write one: if a problem asks for another format, the synthesizer rightly writes no tag, although
  the solvers before it do. (If the synthesizer should have written a tag, its answer is not read,
  and the rollout is a negative, whose penalty is not used.) If no role wrote a tag, the role of the
  last call gets 1, as over the whole rollout.

Calls are counted over the whole rollout (`count_calls`), since roles may share a session. A
variable that one role sets and another takes was of use, and the same failure counts once, for the
role that made it first. Therefore the counts of the roles add up to those of the whole rollout.

If the policy answers in one role only (the tool loop, or a graph whose nodes are not on record),
the penalties are those over the whole rollout.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from hrm_agent.answers.fenced_code import asked_ids, block_ids
from hrm_agent.tools.python_tool import DIFFERS, LOST, NO_OUTPUT, python, python_stateless
from hrm_agent.training.select.code_facts import CodeFacts, code_facts
from hrm_agent.training.select.novelty import Known
from hrm_agent.training.select.retracing.sessions import SessionValues
from hrm_agent.trajectory import Call, RolePenalty, ToolCall, ToolStatus, Trajectory, content_hash
from hrm_agent.trajectory.forest import conversations

__all__ = [
    "PENALTIES",
    "CountedCalls",
    "Penalize",
    "Penalties",
    "answer_tags",
    "count_calls",
    "error_share",
    "mean_penalties",
    "over_roles",
    "over_whole",
    "penalty_error",
    "penalty_format",
    "policy_tool_calls",
    "role_penalties",
]

_NOTES = (LOST, DIFFERS.partition("{}")[0])
_BLANK = re.compile(r"#[^\n]*|\s+")


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """Counted tool calls of a rollout: calls that ended, except for faults of the
    infrastructure.
    """

    failed_calls: tuple[ToolCall, ...]
    """Failed calls, without repeats."""
    effective_calls: tuple[ToolCall, ...]
    """Effective calls."""
    padding: frozenset[str]
    """`tool_call_id` of each call that counts neither as failed nor as effective."""
    counted: frozenset[str] = frozenset()
    """`tool_call_id` of each call that counts as failed or as effective."""

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
    """Count the tool calls of one rollout, given in their order. `problem` is the prompt of the
    rollout's task.
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
    """p_err of the given numbers of calls: the share of failed calls (0.5 if there are
    no calls).
    """
    return failed / (failed + effective) if failed + effective else 0.5


def penalty_error(tool_calls: Sequence[ToolCall]) -> float:
    """p_err of a rollout's tool calls: the share of failed calls among those that count (0.5 if
    none counts).
    """
    return count_calls(tool_calls).error


def policy_tool_calls(trajectory: Trajectory) -> list[ToolCall]:
    """Tool calls of a rollout that were not inherited, except those for which only another model
    asked.
    """
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for call in trajectory.own_calls:
        asked[call.model == trajectory.policy].update(asked_ids(call.id, call.response))
    others = asked[False] - asked[True]
    return [call for call in trajectory.own_tool_calls if call.tool_call_id not in others]


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
    """Values and known words of a session, updated call by call."""

    def __init__(self, problem: str) -> None:
        self.values = SessionValues(problem)
        self.known = Known()


class _Looked:
    """Ended tool call, with the facts of its code and its output."""

    __slots__ = ("asked", "call", "facts", "failed", "form", "news", "output", "session", "sets")

    def __init__(self, call: ToolCall, sessions: dict[str, _Session], problem: str) -> None:
        self.call = call
        self.failed = call.status is not None and call.status.is_policy_failure
        self.session = (
            "" if call.name != python.name else f"{call.identity.thread_id} {call.identity.scope}"
        )
        """Session of the call (empty for a tool without sessions)."""
        self.asked = self.session, call.repeated_of or call.id
        """Key that calls of one session with the same arguments have in common."""
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
            except Exception:  # code that a policy wrote must not end its training
                self.news = None
                self.sets = left

    def _look(self, code: str, facts: CodeFacts, seen: _Session) -> None:
        own = self.call.name == python.name
        left = self.sets
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
    """Calls that showed something new, or set a variable that a later effective call takes."""
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
    """Names that functions take from the session in which they were defined, by session and
    function.
    """
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for looked in calls:
        for name, free in looked.facts.through if looked.facts is not None else ():
            found[looked.session][name] |= free
    return found


def _reach(names: Iterable[str], through: dict[str, set[str]]) -> set[str]:
    """Given names, and all names that functions among them take, directly or through other
    functions.
    """
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
    """Key that calls of one session have in common if they differ only in wording."""
    if code is None:
        try:
            return json.dumps([session, call.name, call.arguments], sort_keys=True, default=str)
        except RecursionError:
            return f"{session} {call.name} not read"
    if facts is not None:
        return f"{session} code {facts.form}"
    return f"{session} no Python {_BLANK.sub('', code)}" if failed else f"{session} code not read"


def _output(call: ToolCall) -> str | None:
    """Output of the code as shown to the model (empty if there was none, None if not on record).

    Notes of the tool on the session are not part of the output.
    """
    if call.stdout or call.value is not None:
        return f"{call.stdout}\n{call.value or ''}".strip()
    lines = [line for line in call.content.splitlines() if not line.startswith(_NOTES)]
    text = "\n".join(lines).strip()
    return None if not call.content.strip() else "" if text.endswith(NO_OUTPUT) else text


def _only_pads(call: Call, tools: CountedCalls) -> bool:
    """True if a turn did nothing but make tool calls that do not count, as calls or by fenced
    blocks.
    """
    listed: list[Any] = call.response.get("tool_calls") or []
    asked = [each.get("id") for each in listed]
    asked += [id_ for id_ in block_ids(call.id) if id_ in tools.padding or id_ in tools.counted]
    return bool(asked) and not answer_tags(call) and tools.padding.issuperset(asked)


def answer_tags(call: Call) -> int:
    """Number of answer tags in the text of a model call."""
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
"""Values of `Call.tools_hash` that show no tools: the tools are not on record, or none were
offered.
"""


def role_penalties(
    trajectory: Trajectory, counted: CountedCalls | None = None
) -> dict[str, RolePenalty]:
    """Penalties by role, in the order in which roles first appear (empty if the policy answered in
    fewer than two roles).

    `counted`: counts of the rollout's tool calls (None: they are computed).
    """
    calls = [call for call in trajectory.own_calls if call.model == trajectory.policy]
    roles = list(dict.fromkeys(call.identity.role for call in calls))
    if len(roles) < 2:
        return {}
    tools = policy_tool_calls(trajectory)
    problem = trajectory.task.prompt if trajectory.task else ""
    counted = count_calls(tools, problem) if counted is None else counted
    asked_by = {
        id_: call.identity.role for call in calls for id_ in asked_ids(call.id, call.response)
    }

    def by_role(made: Iterable[ToolCall]) -> Counter[str]:
        return Counter(asked_by.get(tool.tool_call_id) or tool.identity.role for tool in made)

    failed = by_role(counted.failed_calls)
    effective = by_role(counted.effective_calls)
    made = by_role(tools)
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
    """(p_err, p_format) of a rollout: the means over the roles that have them. If no role has a
    penalty, it is that of a rollout without calls.
    """
    each = list(roles)
    errors = [role.error for role in each if role.error is not None]
    formats = [role.format for role in each if role.format is not None]
    return fmean(errors) if errors else error_share(0, 0), fmean(formats) if formats else 1.0


class Penalties(NamedTuple):
    """Penalties of a rollout."""

    error: float
    """p_err."""
    format: float
    """p_format."""
    by_role: Mapping[str, RolePenalty] = MappingProxyType({})
    """Penalties by role, whose means are the two penalties (empty if they are over the whole
    rollout).
    """


Penalize = Callable[[Trajectory], Penalties]
"""Function of a rollout that returns its penalties."""


def over_whole(trajectory: Trajectory) -> Penalties:
    """Penalties over all calls and turns of a rollout (rStar2-Agent)."""
    return _whole(trajectory, _counted(trajectory))


def over_roles(trajectory: Trajectory) -> Penalties:
    """Means of the penalties of a rollout's roles (those over the whole rollout if the policy
    answered in fewer than two roles).
    """
    counted = _counted(trajectory)
    by_role = role_penalties(trajectory, counted)
    if not by_role:
        return _whole(trajectory, counted)
    return Penalties(*mean_penalties(by_role.values()), by_role)


def _whole(trajectory: Trajectory, counted: CountedCalls) -> Penalties:
    form = penalty_format(trajectory.own_calls, counted, trajectory.policy)
    return Penalties(counted.error, form)


def _counted(trajectory: Trajectory) -> CountedCalls:
    problem = trajectory.task.prompt if trajectory.task else ""
    return count_calls(policy_tool_calls(trajectory), problem)


PENALTIES: dict[str, Penalize] = {"whole": over_whole, "by_role": over_roles}
"""Penalties by the name that a user gives."""
