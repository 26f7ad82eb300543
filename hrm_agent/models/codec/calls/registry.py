"""Registry of all forms of calls, by name."""

from __future__ import annotations

from hrm_agent.errors import ModelError, nearest
from hrm_agent.models.codec.calls.channels import HARMONY, MUSE
from hrm_agent.models.codec.calls.form import CallForm
from hrm_agent.models.codec.calls.gemma import GEMMA
from hrm_agent.models.codec.calls.hermes import HERMES
from hrm_agent.models.codec.calls.marked_json import DEEPSEEK, GRANITE, LLAMA, MISTRAL
from hrm_agent.models.codec.calls.pythonic import PYTHONIC, PYTHONIC_BARE
from hrm_agent.models.codec.calls.tagged import ATEM, GLM, QWEN_XML

__all__ = ["FORMS", "PROMPTED", "form_named"]

FORMS = (
    HERMES,
    QWEN_XML,
    GLM,
    GEMMA,
    DEEPSEEK,
    MISTRAL,
    GRANITE,
    PYTHONIC,
    HARMONY,
    MUSE,
    ATEM,
    LLAMA,
    PYTHONIC_BARE,
)
"""Forms in the order in which they are tried on a template's output. Forms that any text may
resemble come last.
"""
PROMPTED = "prompted"
"""Name in `?tools=` for Hermes' form, requested by a system prompt."""


def form_named(name: str) -> CallForm:
    """Form with a name. Raises `ModelError`."""
    known = {form.name: form for form in FORMS}
    if name not in known:
        names = [*known, PROMPTED]
        raise ModelError(
            f"There is no form of tool calls {name!r}.",
            f"{nearest(name, names)} Known: {', '.join(names)}.".strip(),
        )
    return known[name]
