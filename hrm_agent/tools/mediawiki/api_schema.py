"""The shape of a MediaWiki's answers (formatversion 2), as far as they are read.

A wiki may say anything. This is where it is checked: what is no title, no URL or no number goes no
further.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Self, TypeVar

import httpx
from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from hrm_agent.tools.failures import ToolFailure
from hrm_agent.trajectory import ToolStatus

__all__ = ["ApiRow", "PageRow", "Parsed", "Query", "QueryReply", "in_shape"]

_Shape = TypeVar("_Shape", bound=BaseModel)
_LONGEST_TITLE = 512
"""Characters. A title has 255 bytes, and a namespace before it."""
_LONGEST_URL = 8_192
_NOT_IN_A_URL = re.compile(r'[ <>"\\^`{|}]')
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What begins a line or commands a terminal. Joiners are letters' business: Persian titles have
them.
"""


def _titled(value: str) -> str:
    if not 0 < len(value) <= _LONGEST_TITLE or _CONTROL.search(value):
        raise ValueError("no title of a page")
    return value


def _of_the_web(value: str) -> str:
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise ValueError("no URL") from error
    if (
        url.scheme not in ("http", "https")
        or not url.host
        or _CONTROL.search(value)
        or _NOT_IN_A_URL.search(value)
    ):
        raise ValueError("no URL of the web")
    return value


def _storable(value: str) -> str:
    """NUL bytes are in no text, and databases refuse them."""
    return value.replace("\0", "\ufffd")


Title = Annotated[str, AfterValidator(_titled)]
URL = Annotated[str, Field(max_length=_LONGEST_URL), AfterValidator(_of_the_web)]
Text = Annotated[str, AfterValidator(_storable)]


class ApiRow(BaseModel):
    """A hit of a search."""

    pageid: int
    """The wiki's number of the page."""
    title: Title
    """Title of the page."""
    snippet: Text = ""
    """HTML around the words that were found."""


class PageRow(BaseModel):
    """A page, or why there is none."""

    title: str = ""
    """Title of the page; the requested title if the page does not exist."""
    pageid: int | None = None
    """MediaWiki's page id; None if the page does not exist."""
    lastrevid: int | None = None
    """MediaWiki's id of the newest revision."""
    canonicalurl: URL | None = None
    """Its address."""
    extract: Text | None = None
    """Its text, or the beginning of it, where that was asked for."""
    missing: bool = False
    """The wiki has no page of this title."""
    invalid: bool = False
    """No page can have this title."""
    invalidreason: str = ""
    """Why it cannot, in the wiki's words."""

    @model_validator(mode="after")
    def _a_page_has_a_title(self) -> Self:
        """What is no page is called as it was asked for."""
        if self.pageid is not None:
            _titled(self.title)
        return self


class _Redirect(BaseModel):
    origin: str = Field(alias="from")
    to: str


class _Elsewhere(BaseModel):
    title: str
    url: str = ""


class Query(BaseModel):
    """What `action=query` gives."""

    search: list[ApiRow] = []
    """Hits, best first."""
    pages: list[PageRow] = []
    """Pages that were asked for."""
    redirects: list[_Redirect] = []
    """Redirects that were followed on the way."""
    interwiki: list[_Elsewhere] = []
    """Titles that lead to another wiki."""


class QueryReply(BaseModel):
    """An answer to `action=query`."""

    query: Query = Query()
    """What was found; empty where nothing was."""
    more: dict[str, str | int] | None = Field(default=None, alias="continue")
    """Parameters that give what is still missing; None if nothing is."""


class _Parse(BaseModel):
    text: Text
    """HTML."""


class Parsed(BaseModel):
    """An answer to `action=parse`."""

    parse: _Parse
    """The page as HTML."""


def in_shape(shape: type[_Shape], answer: dict[str, Any], url: str) -> _Shape:
    """The answer, checked."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"{url} answers as no MediaWiki does: {where}: {first['msg']}."
        raise ToolFailure(text, ToolStatus.INFRASTRUCTURE) from error
