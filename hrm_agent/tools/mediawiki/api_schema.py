"""Schema of the parts of a MediaWiki's answers (formatversion 2) that are read.

A wiki's answers are untrusted, and this module checks them: invalid titles, URLs and numbers are
refused.
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
"""Maximum number of characters of a title. MediaWiki allows 255 bytes after the namespace."""
_LONGEST_URL = 8_192
_NOT_IN_A_URL = re.compile(r'[ <>"\\^`{|}]')
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that break lines or control a terminal. Zero-width joiners are allowed, as Persian
titles contain them.
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
    """Text without NUL bytes, which databases refuse."""
    return value.replace("\0", "\ufffd")


Title = Annotated[str, AfterValidator(_titled)]
URL = Annotated[str, Field(max_length=_LONGEST_URL), AfterValidator(_of_the_web)]
Text = Annotated[str, AfterValidator(_storable)]


class ApiRow(BaseModel):
    """Search hit."""

    pageid: int
    """MediaWiki's page id."""
    title: Title
    """Title of the page."""
    snippet: Text = ""
    """HTML around the words that were found."""


class PageRow(BaseModel):
    """Page, or the reason why it is missing."""

    title: str = ""
    """Title of the page, or the requested title if the page does not exist."""
    pageid: int | None = None
    """MediaWiki's page id (None if the page does not exist)."""
    lastrevid: int | None = None
    """MediaWiki's id of the newest revision."""
    canonicalurl: URL | None = None
    """URL of the page."""
    extract: Text | None = None
    """Text of the page or its introduction, if requested."""
    missing: bool = False
    """True if the wiki has no page of this title."""
    invalid: bool = False
    """True if no page can have this title."""
    invalidreason: str = ""
    """Reason why the title is invalid, in the wiki's words."""

    @model_validator(mode="after")
    def _a_page_has_a_title(self) -> Self:
        """Check the title of a page. A missing page has the requested title, which is not
        checked.
        """
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
    """Result of `action=query`."""

    search: list[ApiRow] = []
    """Hits, best first."""
    pages: list[PageRow] = []
    """Requested pages."""
    redirects: list[_Redirect] = []
    """Redirects that were followed."""
    interwiki: list[_Elsewhere] = []
    """Titles that lead to another wiki."""


class QueryReply(BaseModel):
    """Answer to `action=query`."""

    query: Query = Query()
    """Query result. Empty if nothing was found."""
    more: dict[str, str | int] | None = Field(default=None, alias="continue")
    """Parameters that request the rest of the result (None if the answer is complete)."""


class _Parse(BaseModel):
    text: Text
    """HTML."""


class Parsed(BaseModel):
    """Answer to `action=parse`."""

    parse: _Parse
    """Page as HTML."""


def in_shape(shape: type[_Shape], answer: dict[str, Any], url: str) -> _Shape:
    """Answer checked against a schema. Raises `ToolFailure` if it is invalid."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"{url} answers as no MediaWiki does: {where}: {first['msg']}."
        raise ToolFailure(text, ToolStatus.INFRASTRUCTURE) from error
