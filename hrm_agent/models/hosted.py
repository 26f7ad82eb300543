"""Asking another LangChain chat model in the place of a policy's engine."""

from __future__ import annotations

from concurrent.futures import Future
from contextvars import Context
from typing import Any

from langchain_core.language_models import BaseChatModel

from hrm_agent.async_bridge import call_in_thread
from hrm_agent.errors import ModelError
from hrm_agent.models.call_recording import PendingCall

__all__ = ["ask_in_thread", "name_of_model"]


def ask_in_thread(model: BaseChatModel, pending: PendingCall, options: dict[str, Any]) -> Future[Any]:
    """Call another chat model, in a thread, so that sync and async callers share one path.

    Temperature, top-p and the token limit are passed on under LangChain's usual names; a seed is not, since few
    providers take one. A provider that refuses a parameter says so itself.
    """
    tools, choice, sampling = options.get("tools"), options.get("tool_choice"), pending.sampling
    runnable: Any = model.bind_tools(tools, **({"tool_choice": choice} if choice else {})) if tools else model
    passed: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
    if sampling.top_p < 1:
        passed["top_p"] = sampling.top_p

    def ask() -> Any:
        try:
            asked = runnable.bind(**passed)
            return asked.invoke(list(pending.messages), {"callbacks": []}, stop=list(sampling.stop) or None)
        except Exception as error:
            raise _model_failure(model, error) from error

    return call_in_thread(ask, Context())  # the graph around it is not the provider's affair: none of its config


def _model_failure(model: BaseChatModel, error: Exception) -> ModelError:
    """A provider that does not answer is no fault of the graph: the run stops, and can be resumed."""
    return ModelError(
        f"The model {name_of_model(model)} gave no answer: {type(error).__name__}: {error}.",
        "Check its key, its name and the network, then `hrm-agent resume` the run.",
    )


def name_of_model(backend: Any) -> str:
    """The name by which a chat model, or an engine, goes on record."""
    name = getattr(backend, "model_name", None) or getattr(backend, "model", None)
    return str(name or type(backend).__name__)
