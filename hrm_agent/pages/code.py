"""Syntax highlighting by Pygments, which comes with rich, when the page is written."""

from __future__ import annotations

from hrm_agent.basics.markup import Html, cut, element, join

__all__ = ["code_block"]

_MOST = 20_000
"""Maximum characters of code that are highlighted. Longer code is shown as plain text."""


def code_block(code: str, language: str = "python") -> Html:
    """Block of highlighted code in Python or JSON."""
    if len(code) > _MOST:
        return element("pre", cut(code))
    from pygments import lex
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, Keyword, Number, Operator, String

    classes = {Keyword: "k", Operator.Word: "k", String: "s", Number: "n", Comment: "c"}
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    marked: list[Html] = []
    for kind, text in lex(code, lexer):
        name = next((name for above, name in classes.items() if kind in above), None)
        marked.append(element("span", text, class_=name) if name else join(text))
    return element("pre", element("code", *marked))
