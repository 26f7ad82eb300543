"""Parsing of a model's reply as JSON of a given form, and conversion of a model's text to one safe
line of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from hrm_agent.answers.final_answer import own_text
from hrm_agent.answers.json_repair import json_values

__all__ = ["UnparsableAnswer", "one_line", "read_as"]

_SHORT = 64
"""Maximum number of characters of a short answer."""

Form = TypeVar("Form", bound=BaseModel)


class UnparsableAnswer(ValueError):
    """Error for an answer of the wrong form. Its text explains the problem to the model."""


def read_as(form: type[Form], text: str) -> Form:
    """First reading of `text` as JSON that fits `form`. If none fits, raises `UnparsableAnswer`
    with the problem of the first reading, which is the likeliest.
    """
    complaint = ""
    for value in _readings(text):
        try:
            return form.model_validate(value)
        except ValidationError as error:
            if not complaint and not isinstance(value, str):
                first = error.errors(include_url=False, include_input=False, include_context=False)[
                    0
                ]
                place = ".".join(map(str, first["loc"]))
                complaint = f"{place}: {first['msg']}" if place else first["msg"]
        except RecursionError:
            complaint = complaint or "it is nested too deeply"
    raise UnparsableAnswer(complaint or "there is no JSON object in it")


def _readings(text: str) -> Iterator[Any]:
    """Candidate values of a text. A short answer may be a plain value, such as `accept`."""
    yield from json_values(text)
    bare = own_text(text).strip(" \t\r\n\"'`.") if len(text) <= 16 * _SHORT else ""
    if 0 < len(bare) <= _SHORT:
        yield bare


def one_line(text: str, limit: int) -> str:
    """`text` without line breaks, cut to `limit` characters, so that it cannot forge a line of a
    prompt.
    """
    return " ".join(text[: 4 * limit].split())[:limit]
