"""Roles of an agent, and requests to them.

A role is a system turn, a form of answers, and sampling options. `ask_role` sends one request to a
role. If the answer cannot be parsed, the model is shown its answer with the parse error and asked
again. If the second answer cannot be parsed either, the caller decides what to do. No model output
raises an error here; only a problem that a person can fix (such as an unreachable server) raises an
`HrmError`.

    class Judgement(BaseModel):
        fair: bool

    JUDGE = Role("judge", 'Is it fair? Answer with JSON only: {"fair": true or false}', Judgement)
    said = await ask_role(JUDGE, "Three for you, one for me.")
    said.value  # Judgement, or None
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from pydantic import BaseModel

from hrm_agent.answers.final_answer import own_text
from hrm_agent.answers.typed_reply import UnparsableAnswer, read_as
from hrm_agent.errors import ContextLengthError
from hrm_agent.graphs.parts.budget import sampled_tokens
from hrm_agent.models import policy
from hrm_agent.trajectory import Sampling

__all__ = ["CallOptions", "Role", "RoleReply", "ask_role", "chat_model"]

MAX_COMPLAINT = 400
"""Maximum number of characters of a parse error that are shown to a model."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Role(Generic[Answer]):
    """Role of an agent, which a model plays."""

    name: str
    """Name by which a graph's options (`models`, `temperatures`) refer to the role."""
    prompt: str
    """System turn of the role."""
    output: type[Answer] | None = None
    """Pydantic model of the role's answers, which are then JSON (None: answers are text)."""
    temperature: float | None = None
    """Sampling temperature (None: that of the current policy)."""
    max_tokens: int | None = None
    """Maximum sampled tokens of one reply (None: that of the current policy)."""

    def read(self, text: str) -> Answer:
        """Parse the answer in `text`. Raises `UnparsableAnswer`."""
        if self.output is not None:
            return read_as(self.output, text)  # pyright: ignore[reportArgumentType, reportReturnType]
        own = own_text(text).strip()
        if not own:
            raise UnparsableAnswer("there is no text in it")
        return own  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class CallOptions:
    """Overrides for one request to a role."""

    model: str | BaseChatModel | None = None
    """Model string, or a chat model object (None: the current policy)."""
    temperature: float | None = None
    """Sampling temperature (None: that of the role)."""
    max_tokens: int | None = None
    """Budget of sampled tokens for both answers together, like `PolicyModel.budget`."""
    calls: int = 2
    """Maximum number of model calls. With 1, an answer that cannot be parsed is not requested
    again.
    """


@dataclass(frozen=True)
class RoleReply(Generic[Answer]):
    """Reply of a role: its parsed value, the raw messages, and the parse error."""

    value: Answer | None
    """Parsed answer (None if it could not be parsed)."""
    messages: tuple[AIMessage, ...] = ()
    """Sampled answers. There are two if the first could not be parsed."""
    complaint: str = ""
    """Parse error of the last answer (empty if it could be parsed)."""
    context_full: bool = False
    """True if the conversation no longer fitted into the model's context window."""

    @property
    def text(self) -> str:
        """Text of the last answer."""
        return self.messages[-1].text if self.messages else ""


async def ask_role(
    role: Role[Answer],
    request: str,
    options: CallOptions | None = None,
    *,
    read: Callable[[str], Answer] | None = None,
) -> RoleReply[Answer]:
    """Send one request to a role. `read`: parser of the answer (None: the role's parser)."""
    options = options or CallOptions()
    read = read or role.read
    turns: list[BaseMessage] = [SystemMessage(role.prompt), HumanMessage(request)]
    temperature = role.temperature if options.temperature is None else options.temperature
    form: Any = (
        role.output if role.output is not None and issubclass(role.output, BaseModel) else None
    )
    complaint = ""
    for _ in range(options.calls):
        answers = tuple(turn for turn in turns if isinstance(turn, AIMessage))
        spent = sampled_tokens(answers)
        asked = _left(role.max_tokens, spent)
        budget = _left(options.max_tokens, spent)
        if any(left is not None and left < 1 for left in (asked, budget)):
            break
        try:
            model = chat_model(
                options.model,
                schema=form,
                temperature=temperature,
                max_tokens=asked,
                budget=budget,
            )
            answer = await model.ainvoke(turns)
        except ContextLengthError as error:
            return RoleReply(None, answers, str(error), context_full=True)
        try:
            return RoleReply(read(answer.text), (*answers, answer))
        except UnparsableAnswer as error:
            complaint = str(error)[:MAX_COMPLAINT]
        turns += [
            answer,
            HumanMessage(f"This cannot be used: {complaint}\nAnswer again, in the form asked for."),
        ]
    return RoleReply(None, tuple(turn for turn in turns if isinstance(turn, AIMessage)), complaint)


def _left(limit: int | None, spent: int) -> int | None:
    return None if limit is None else limit - spent


def chat_model(
    model: str | BaseChatModel | None,
    *,
    tools: Sequence[dict[str, Any]] = (),
    schema: type[BaseModel] | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    budget: int | None = None,
) -> Any:
    """Chat model with the settings of a request. If `model` is a chat model object, it gets the
    limits, but not the schema.

    `tools`: tools in the format of `convert_to_openai_tool`. `budget`: number of tokens that are
    left, like `PolicyModel.budget`.
    """
    if not isinstance(model, BaseChatModel):
        chat: Any = policy(
            model=model,
            schema=schema,
            temperature=temperature,
            max_tokens=max_tokens,
            budget=budget,
        )
        return chat.bind_tools(tools) if tools else chat
    if max_tokens is None and budget is not None and budget < Sampling().max_tokens:
        max_tokens = budget
    given = {"temperature": temperature, "max_tokens": max_tokens}
    held: Any = model.bind_tools(tools) if tools else model
    return held.bind(**{name: value for name, value in given.items() if value is not None})
