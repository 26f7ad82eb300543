"""Tests of a codec on probe texts, run when a model is loaded.

They take some milliseconds. A tokenizer that loses text is refused. If the model would not see its
tools, or its calls would not be read, an error is raised once tools are offered. Conversations
without tools are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from hrm_agent.errors import ModelError
from hrm_agent.models.capabilities import Fault, Speech
from hrm_agent.models.codec.calls.registry import PROMPTED
from hrm_agent.models.codec.dialect import PROBE_CALL, PROBE_TOOL
from hrm_agent.models.codec.thoughts import REASONING
from hrm_agent.models.engine import TemplateMismatch

__all__ = ["prove"]

_TEXTS = {
    "spaces and line ends": "What is 6*7?\n\n  Two  spaces,\ta tab.\n",
    "code": 'def f(x: int) -> str:\n    return f"{x!r}"  # <b>&amp;</b>\n',
    "letters of other alphabets": "Größe, 漢字, кот, قط",
    "emoji": "🎉👩‍🚀",
}
_SETTINGS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
}
"""Settings of a generation configuration that change the distribution, with their neutral values.
"""


def prove(codec: Any, generation: Any = None) -> Speech:
    """Test a codec over a chat template. `generation`: the model's own `GenerationConfig`."""
    dialect = codec.dialect
    form = f"{dialect.form.name}, by {codec.written_by}"
    thoughts = dialect.thoughts
    ends = sorted(codec.ends)
    names = codec.tokenizer.convert_ids_to_tokens(ends)
    settings = {name: getattr(generation, name, None) for name in _SETTINGS}
    faults: list[Fault] = []
    lost = [name for name, text in _TEXTS.items() if codec.decode(codec.encode_text(text)) != text]
    if lost:
        faults.append(
            Fault(
                f"its tokenizer does not give back {', '.join(lost)}",
                "Texts with them are changed before they reach the model.",
            )
        )
    return Speech(
        tools=f"{PROMPTED}: asked for in the system turn" if dialect.shape.prompted else form,
        thoughts=None if thoughts is None else f"{thoughts.open} ... {thoughts.close}",
        ends=tuple(sorted(name or f"#{token}" for token, name in zip(ends, names, strict=True))),
        settings=tuple(
            f"{name} {value:g}"
            for name, value in settings.items()
            if isinstance(value, (int, float)) and value != _SETTINGS[name]
        ),
        faults=(*faults, *_tool_faults(codec)),
    )


def _tool_faults(codec: Any) -> list[Fault]:
    other = "Try another form with ?tools=prompted, or another template with ?template=FILE."
    asked = [HumanMessage("QUESTION")]
    call = {**PROBE_CALL, "id": "call-0", "type": "tool_call"}
    thoughts = codec.dialect.thoughts
    thinks = thoughts is not None and not thoughts.closed
    answer = AIMessage(
        "", tool_calls=[call], additional_kwargs={REASONING: "THOUGHT"} if thinks else {}
    )
    seen = [*asked, answer, ToolMessage("RESULT", tool_call_id="call-0", name=PROBE_CALL["name"])]
    sampled: list[int] = []

    def told() -> bool:
        return PROBE_CALL["name"] in codec.decode(codec.encode(asked, [PROBE_TOOL]))

    def read() -> bool:
        sampled.extend(codec.encode_turn([*asked, answer], [PROBE_TOOL]))
        return codec.parse(codec.decode(sampled), [PROBE_TOOL]).tool_calls == [PROBE_CALL]

    def goes_on() -> bool:
        last = sampled[-1] if sampled else None
        return "RESULT" in codec.decode(codec.extend(seen, 1, ended_by=last, tools=[PROBE_TOOL]))

    checks: Sequence[tuple[Callable[[], bool], str]] = (
        (told, "it is not told of its tools"),
        (read, "a call in its own form is not read back"),
        (
            goes_on,
            (
                "the conversation does not go on after a tool's result with the earlier tokens as"
                " they were"
            ),
        ),
    )
    return [Fault(what, other, about_tools=True) for holds, what in checks if not _holds(holds)]


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except (ModelError, TemplateMismatch, ValueError, TypeError, KeyError):
        return False
