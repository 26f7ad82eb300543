"""Answer of the critic, and its parser.

The critic chooses one of five actions: `accept`; `revise` one subgoal; `replan`; `ask` a person;
`give_up`. Clear synonyms are accepted. An impossible action becomes `replan`: to revise a subgoal
that does not exist, or to ask a person if that is not allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import BaseModel, field_validator, model_validator

from hrm_agent.answers.typed_reply import one_line

__all__ = ["Action", "CriticAnswer"]

Action = Literal["accept", "revise", "replan", "ask", "give_up"]

MAX_HINT = 500
"""Maximum number of characters of a hint."""
_MEANT: dict[str, Action] = {
    **dict.fromkeys(
        (
            "accept",
            "accepted",
            "approve",
            "approved",
            "submit",
            "ok",
            "okay",
            "yes",
            "done",
            "pass",
        ),
        "accept",
    ),
    **dict.fromkeys(
        ("revise", "revision", "fix", "retry", "redo", "repair", "reject", "resolve"), "revise"
    ),
    **dict.fromkeys(("replan", "re_plan", "plan", "new_plan", "plan_again", "restart"), "replan"),
    **dict.fromkeys(
        ("ask", "ask_person", "ask_a_person", "ask_human", "ask_user", "human", "clarify"), "ask"
    ),
    **dict.fromkeys(("give_up", "giveup", "abort", "fail", "impossible", "quit"), "give_up"),
}
_ACTIONS = ("action", "verdict", "decision", "status")
_SUBGOALS = ("subgoal", "name", "target")
_HINTS = ("hint", "reason", "feedback", "question", "comment", "message")


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class CriticAnswer(BaseModel):
    """What the critic answers with."""

    action: Action
    """Action, in which synonyms are replaced."""
    subgoal: str = ""
    """Name of the subgoal to revise (empty if there is none)."""
    hint: str = ""
    """Hint for the next try. For `ask` it is the question, and for `give_up` the reason."""
    check: str = ""
    """Python asserts on the results."""

    @model_validator(mode="before")
    @classmethod
    def _by_other_names(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"action": given}
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, Any]", given)
        if (
            "action" not in fields
            and len(fields) == 1
            and isinstance(inner := next(iter(fields.values())), Mapping)
        ):
            fields = cast("Mapping[str, Any]", inner)  # {"verdict": {"action": ...}}
        found = {
            "action": _meant(_first(fields, _ACTIONS)),
            "subgoal": _text(_first(fields, _SUBGOALS)),
            "hint": _text(_first(fields, _HINTS)),
            "check": _text(fields.get("check")),
        }
        return {name: value for name, value in found.items() if value is not None}

    @field_validator("hint")
    @classmethod
    def _in_one_line(cls, hint: str) -> str:
        """Shorten the hint to one line. It is written into requests, where further lines could
        imitate the parts of a request that follow.
        """
        return one_line(hint, MAX_HINT)

    def where(self, subgoals: Sequence[str], *, may_ask: bool) -> CriticAnswer:
        """Return the answer, in which an action that is impossible with these subgoals becomes
        `replan`. `may_ask`: True if a person may be asked.
        """
        named = self.subgoal if self.subgoal in subgoals else ""
        action = self.action
        if (action == "revise" and not named) or (action == "ask" and not may_ask):
            action = "replan"
        return self.model_copy(
            update={
                "action": action,
                "subgoal": named,
                "hint": self.hint or ("" if action == "accept" else "Try again."),
            }
        )

    def overruled(self, wrong: str, reads: Sequence[str]) -> CriticAnswer:
        """Verdict after a failed check: `revise` if the check reads only the result of one subgoal,
        else `replan`.
        """
        hint = one_line(f"The check failed: {wrong.splitlines()[-1]}", MAX_HINT)
        subgoal = reads[0] if len(reads) == 1 else ""
        return self.model_copy(
            update={"action": "revise" if subgoal else "replan", "subgoal": subgoal, "hint": hint}
        )


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _meant(given: Any) -> Any:
    if isinstance(given, bool):
        return "accept" if given else "revise"
    said = (
        given.strip().lower().replace(" ", "_").replace("-", "_")
        if isinstance(given, str)
        else given
    )
    return _MEANT.get(said, said) if isinstance(said, str) else said


def _text(given: Any) -> str | None:
    if given is None:
        return None
    lines = (
        [str(item) for item in cast("list[Any]", given)]
        if isinstance(given, list)
        else [str(given)]
    )
    return "\n".join(lines)
